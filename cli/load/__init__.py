"""`ratoon bench`: a load generator, its workloads and its measurements."""
