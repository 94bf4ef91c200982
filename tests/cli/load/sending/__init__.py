"""Tests of cli/load/sending/."""
