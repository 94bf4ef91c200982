"""Made-up models: with layers of different kinds, unusual parts, or a new weight format."""
