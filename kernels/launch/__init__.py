"""Compilation and launch of kernels."""
