"""The collectives between ranks over other GPUs' memory: sums, gathers, broadcasts."""
