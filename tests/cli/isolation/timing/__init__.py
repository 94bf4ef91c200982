"""Tests of cli/isolation/timing/."""
