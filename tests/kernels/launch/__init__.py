"""Tests of kernels/launch/."""
