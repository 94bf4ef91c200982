"""Tests of cli/options/."""
