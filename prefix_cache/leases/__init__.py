"""Leases of running sequences, the loads that they wait for, and retained prefixes.

Elsewhere: which blocks are evicted for it (`tiers`).
"""
