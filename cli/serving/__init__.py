"""`ratoon serve`: processes, their restarts, what the operator reads."""
