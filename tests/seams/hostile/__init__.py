"""Attacks on a real server, and bounds on their costs for other clients."""
