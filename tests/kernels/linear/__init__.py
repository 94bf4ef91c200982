"""Tests of kernels/linear/."""
