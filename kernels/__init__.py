"""Tensors in, tensors out: Triton kernels, each with its plain PyTorch reference beside it."""
