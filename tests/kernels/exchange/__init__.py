"""Tests of kernels/exchange/."""
