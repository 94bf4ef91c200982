"""Prompts and answers of some length, by flags, data sets and named workloads."""
