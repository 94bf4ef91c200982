"""Tests of prefix_cache/leases/."""
