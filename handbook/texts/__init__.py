"""Handbooks and questions about them, from a seed, for tests and benchmarks of the embedded model.

Only a checkout has this package. An installation has only the weights.
"""
