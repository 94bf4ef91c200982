"""The sampling of tokens from logits: filters, penalties, noise, draws."""
