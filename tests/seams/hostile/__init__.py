"""Attacks on a real server, and bounds on what they cost others."""
