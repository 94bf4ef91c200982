"""Checks that recompute the cache's incremental counts and report differences.

They cost a walk over the tree and the leases: for tests after every operation, and for an idle
engine. They read everything and change nothing.
"""
