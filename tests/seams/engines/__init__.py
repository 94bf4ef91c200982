"""Engines over TCP, found in the state, or of several ranks: a gateway and real processes."""
