"""Collectives of ranks over the memory of other GPUs (peer memory): sums, gathers, broadcasts."""
