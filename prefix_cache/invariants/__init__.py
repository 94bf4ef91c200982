"""Checks that recompute the cache's incremental counts and report differences.

They walk over the tree and the leases. They serve tests after every operation, and an idle engine.
They change nothing.
"""
