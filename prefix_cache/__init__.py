"""Decides which blocks are kept, evicted and shared. No torch, no I/O, no clock of its own.

When a pool is full: whose block goes is said in `quotas/victim_queue.py`, which of theirs in
`policies/eviction_policy.py`, and whether it is copied down first in `tiers/offloader.py`.
"""
