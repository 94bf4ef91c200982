"""The fetching of blocks: which are fetched rather than computed, and the thread that asks."""
