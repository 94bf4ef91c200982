"""Pools: the memory of the device and host tiers, of states and of rings."""
