"""Requests in the engine: their checks, sequences, blocks and constraints."""
