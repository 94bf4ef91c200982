"""The memory sizes of a start: a step's activations, the pools, the lower tiers."""
