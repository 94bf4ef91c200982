"""Doubles of the engine and its parts."""
