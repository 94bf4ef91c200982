"""Doubles of drafters."""
