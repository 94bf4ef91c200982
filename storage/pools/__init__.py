"""Pools: the memory of the device and host tiers, of recurrent states and of rings."""
