"""Copies of blocks between tiers, and evictions from them."""
