"""Tests of cli/models/."""
