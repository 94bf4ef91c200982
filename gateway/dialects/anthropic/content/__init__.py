"""The content blocks and tools of a request as Structs."""
