"""The layers of decoders: their configs, and their computation."""
