"""Tests of kernels/attention/."""
