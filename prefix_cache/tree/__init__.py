"""The radix tree of cached KV blocks, and the tiers in which each block lies."""
