"""Blocks between engines: what crosses, what opens, what is asked for."""
