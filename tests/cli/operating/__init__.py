"""Tests of cli/operating/."""
