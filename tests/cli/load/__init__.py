"""Tests of cli/load/."""
