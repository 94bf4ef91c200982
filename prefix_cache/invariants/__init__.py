"""Checks that recompute the cache's incremental counts and report differences.

The checks walk over the tree and the leases, and change nothing. Tests check after every operation.
Engines check small trees while they are idle, and any tree at their end.
"""
