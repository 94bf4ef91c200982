"""Engines as seen by a gateway with several."""
