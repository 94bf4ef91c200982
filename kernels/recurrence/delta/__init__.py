"""The gated delta rule: decodes, prompts in chunks, and its plain reference."""
