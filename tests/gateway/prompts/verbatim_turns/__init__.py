"""Turns that come back as their own tokens."""
