"""Models without published checkpoints: with different layers, odd parts, a new weight format."""
