"""Architectures without experts, whose layers all have attention over keys and values."""
