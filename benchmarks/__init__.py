"""Benchmarks. Every figure in the docs is beside the command of these that measures it.

`everything` runs all; the others import nothing of each other but `record`, `running` and
`handbook_answers`.
"""
