"""The keys and values in blocks: writing them, copying them, and storing them in fp8."""
