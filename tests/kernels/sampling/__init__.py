"""Tests of kernels/sampling/."""
