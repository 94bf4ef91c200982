"""The radix tree: nodes, edges, each block's tiers, invariants."""
