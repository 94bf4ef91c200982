"""Tests of prefix_cache/quotas/."""
