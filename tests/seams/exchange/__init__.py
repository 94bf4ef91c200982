"""Blocks exchanged between two engines: bytes and tokens equal computed ones."""
