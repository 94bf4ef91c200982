"""Blocks exchanged between engines: their bytes and the answers are those of computed blocks."""
