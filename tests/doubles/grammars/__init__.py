"""Grammars for tests, and a parser that is their reference."""
