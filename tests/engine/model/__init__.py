"""Tests of `engine.model`."""
