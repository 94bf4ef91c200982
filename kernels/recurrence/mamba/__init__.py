"""The state-space duality of Mamba-2: decodes, prompts in chunks, and its plain reference."""
