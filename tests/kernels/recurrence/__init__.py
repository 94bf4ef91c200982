"""Tests of kernels of layers with a state: convolution, gated delta rule, SSD, gated norm."""
