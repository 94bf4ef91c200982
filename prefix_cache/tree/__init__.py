"""The radix tree: which blocks are cached, and in which tiers each of them lies.

Knows: tokens, nodes, residency. Does not know: why a block is kept or who holds it.
"""
