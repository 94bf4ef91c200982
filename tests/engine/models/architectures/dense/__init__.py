"""Tests of `engine.models.architectures.dense`."""
