"""Doubles of ranks: missing ranks, and ranks without GPUs."""
