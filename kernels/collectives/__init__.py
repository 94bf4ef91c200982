"""The collectives of ranks over peer memory of other GPUs: sums, gathers, broadcasts."""
