"""Answers under grammars over HTTP, from a real engine with a tiny random model."""
