"""The layers of decoders: what they are as data, and what they compute."""
