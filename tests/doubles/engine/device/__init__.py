"""Doubles of devices, and of what devices compute."""
