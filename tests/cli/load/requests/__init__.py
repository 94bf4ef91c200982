"""Tests of cli/load/requests/."""
