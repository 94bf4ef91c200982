"""Doubles of engines, as a gateway with several engines sees them."""
