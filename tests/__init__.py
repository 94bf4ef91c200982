"""Tests mirror the rooms; seams holds what crosses them."""
