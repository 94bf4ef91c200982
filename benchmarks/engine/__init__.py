"""The costs of kernels, model steps and the cache in isolation."""
