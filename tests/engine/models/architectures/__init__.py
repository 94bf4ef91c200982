"""Tests of `engine.models.architectures`."""
