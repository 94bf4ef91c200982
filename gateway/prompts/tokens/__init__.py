"""The conversion of text to token ids: tokenizer, control tokens, long texts in chunks.

Knows: texts and ids. Does not know: messages or templates.
"""
