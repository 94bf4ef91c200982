"""The disk tier: LMDB in its own process, and the engine's client of that process."""
