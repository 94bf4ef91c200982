"""The sizes of a start: a step's activations, the pools of blocks and states, the lower tiers.

Knows: free bytes, layouts, limits of steps. Does not know: model checkpoints, kernels, the link.
"""
