"""Tests of prefix_cache/policies/."""
