"""What kernels, steps and the cache take by themselves."""
