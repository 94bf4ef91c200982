"""Tests of `engine.models.architectures.mixtures`."""
