"""Bodies of requests: read within bounds of memory, inflated, parsed into Structs."""
