"""Tests of `engine.models.architectures.hybrids`."""
