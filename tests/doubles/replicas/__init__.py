"""Doubles of engines, for a gateway with several engines."""
