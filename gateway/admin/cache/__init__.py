"""The operator's routes for the cache: its counters, evictions and flush."""
