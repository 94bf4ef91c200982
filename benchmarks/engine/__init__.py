"""The costs of kernels, model steps, the cache and fetched blocks in isolation."""
