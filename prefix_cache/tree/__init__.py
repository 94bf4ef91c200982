"""The radix tree of cached blocks, and the tiers in which each block lies.

Knows: tokens, nodes, residency. Does not know: why a block is kept or who holds it.
"""
