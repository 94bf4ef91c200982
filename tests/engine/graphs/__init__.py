"""Tests of `engine.graphs`."""
