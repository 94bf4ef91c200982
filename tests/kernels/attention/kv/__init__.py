"""Tests of kernels/attention/kv/."""
