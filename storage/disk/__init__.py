"""The disk tier: LMDB in a process of its own, and the engine's side of it."""
