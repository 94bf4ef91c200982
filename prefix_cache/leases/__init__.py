"""Leases of running sequences, the loads that they wait for, and retained prefixes.

The package `tiers` makes room for leases by evictions.
"""
