"""Prompts and answers of given lengths, from flags, data sets and named workloads."""
