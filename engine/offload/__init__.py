"""Weights that stay in host memory: of which layers, where they lie, how they get to the device."""
