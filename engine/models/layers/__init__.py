"""The layers of decoders: their sizes as data, and their computation."""
