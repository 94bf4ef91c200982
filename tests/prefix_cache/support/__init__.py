"""Caches for tests, drivers of random operations on them, and what they are compared with."""
