"""Engines, checkpoints and ranks that tests of the engine step by hand."""
