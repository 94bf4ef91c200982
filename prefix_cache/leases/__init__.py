"""Leases of running sequences, the loads that they wait for, and retained prefixes.

Knows: what a request may count on. Does not know: which block makes room for it (`tiers`).
"""
