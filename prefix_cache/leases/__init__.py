"""Leases of running sequences, the loads that they wait for, and retained prefixes.

Knows: which blocks a request may use. Does not know: which blocks are evicted for it (`tiers`).
"""
