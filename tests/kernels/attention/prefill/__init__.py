"""Tests of kernels/attention/prefill/."""
