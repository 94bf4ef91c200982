"""From messages and text to token ids: templates, control tokens, tokenising, admission."""
