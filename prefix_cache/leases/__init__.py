"""Leases: what running sequences hold, the loads that they wait for, and prefixes that are kept.

Knows: what a request may count on. Does not know: which block makes room for it (`tiers`).
"""
