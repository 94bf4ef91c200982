"""Benchmarks. Each figure in the docs stands beside the benchmark command that measures it.

`everything` runs all; the others import nothing of each other but `record`, `running` and
`handbook_answers`.
"""
