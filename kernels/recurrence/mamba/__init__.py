"""Mamba-2's state-space duality: decodes, prompts in chunks, and its plain reference."""
