"""Tests of `engine.models.served`."""
