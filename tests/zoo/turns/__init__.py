"""Turns of models, written and read with published templates and published tests."""
