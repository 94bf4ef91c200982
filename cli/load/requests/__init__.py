"""What is asked: prompts and answers of some length, by flags, data sets and named workloads."""
