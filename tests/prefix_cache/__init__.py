"""Tests of prefix_cache."""
