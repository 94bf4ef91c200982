"""Waits of requests under load: bursts, floods, and gaps between tokens."""
