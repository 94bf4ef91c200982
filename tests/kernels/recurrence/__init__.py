"""Kernels of layers with a state: convolution, gated delta rule, SSD, gated norm."""
