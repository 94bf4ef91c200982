"""The start of an engine, before its first step: weights, memory, kernels, the tree from disk."""
