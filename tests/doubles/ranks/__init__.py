"""Doubles of ranks: ranks that do not exist, and ranks without GPUs."""
