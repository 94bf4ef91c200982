"""Ranks that are not there, or have no GPUs."""
