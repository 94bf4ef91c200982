"""Decides what stays, what goes and what is shared: tree, residency, eviction. No torch, no I/O, no clock."""
