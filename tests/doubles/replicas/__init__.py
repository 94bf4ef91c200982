"""Engines as a gateway with several sees them."""
