"""Tests of prefix_cache/tiers/."""
