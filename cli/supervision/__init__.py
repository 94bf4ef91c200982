"""The processes of `ratoon serve`: their start, their watch and restarts, and their output."""
