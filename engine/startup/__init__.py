"""The start before the first step: weights, memory, kernels, the tree restored from disk."""
