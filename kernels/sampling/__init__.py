"""From logits to tokens: filters, penalties, noise, sampling."""
