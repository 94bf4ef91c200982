"""What is in the cache, and what is told of it: hits, tiers, restarts, marks."""
