"""`ratoon serve`: its processes, their restarts, and its output."""
