"""Tests of `engine.sampler`."""
