"""Tests of `engine.execution.graphs`."""
