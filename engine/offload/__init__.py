"""Weights that stay in host memory: choice of layers, their memory, their way to the device."""
