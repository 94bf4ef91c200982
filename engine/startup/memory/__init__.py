"""The sizes of memory, computed at the start: a step's activations, the pools, the lower tiers."""
