"""Bodies of requests: read within limits of memory, inflated, and parsed into Structs."""
