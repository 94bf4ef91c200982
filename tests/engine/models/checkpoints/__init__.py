"""Tests of `engine.models.checkpoints`."""
