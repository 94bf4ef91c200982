"""The sizes of a start: a step's activations, the pools of blocks and states, the lower tiers."""
