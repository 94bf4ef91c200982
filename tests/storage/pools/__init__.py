"""Tests of storage/pools/."""
