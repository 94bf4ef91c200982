"""A start before its first step: weights, memory, kernels, the tree restored from disk."""
