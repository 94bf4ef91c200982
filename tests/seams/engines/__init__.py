"""Engines over TCP, registered engines, and engines of several ranks, with real processes."""
