"""Tests of cli/serving/."""
