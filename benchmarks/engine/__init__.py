"""The costs of kernels, steps and the cache by themselves."""
