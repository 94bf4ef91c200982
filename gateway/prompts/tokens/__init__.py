"""The conversion of text to token ids: tokenizer, control tokens, long texts in chunks."""
