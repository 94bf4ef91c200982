"""Engines, checkpoints and ranks that tests of the engine drive by hand."""
