"""Tests of kernels/attention/decode/."""
