"""Tests of prefix_cache/tree/."""
