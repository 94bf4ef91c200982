"""The forward pass of decoders: how a decoder is built, and the memory of its layers in a step."""
