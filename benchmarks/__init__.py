"""Benchmarks. Each figure in the docs stands beside the benchmark command that measures it.

`everything` runs all benchmarks. Benchmarks share `record`, `running` and `handbook_answers`, and
otherwise do not import each other.
"""
