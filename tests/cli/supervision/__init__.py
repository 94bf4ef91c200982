"""Tests of cli/supervision/."""
