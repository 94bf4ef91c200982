"""Waits under load: bursts, floods, gaps between tokens."""
