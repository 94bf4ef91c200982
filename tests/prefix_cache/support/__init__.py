"""Caches for tests, drivers of random operations on them, and their references."""
