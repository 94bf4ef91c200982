"""Tests of `engine.models.weight_formats`."""
