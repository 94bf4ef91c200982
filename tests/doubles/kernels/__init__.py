"""Doubles of kernels: what runs or checks them on a CPU."""
