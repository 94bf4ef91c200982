"""Tests of `engine.models.architectures.fields`."""
