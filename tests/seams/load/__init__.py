"""Waits under load: bursts, floods, and gaps between tokens."""
