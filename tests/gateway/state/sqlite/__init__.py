"""Tests of gateway/state/sqlite/."""
