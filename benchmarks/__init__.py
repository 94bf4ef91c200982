"""Benchmarks. Every figure in the docs is beside the command of these that measures it."""
