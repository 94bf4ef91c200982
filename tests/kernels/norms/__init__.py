"""Tests of kernels/norms/."""
