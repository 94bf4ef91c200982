"""`ratoon bench`: load, its workloads and its numbers."""
