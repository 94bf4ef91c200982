"""Tests of prefix_cache/eviction/."""
