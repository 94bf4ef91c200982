"""The compilation and launch of kernels."""
