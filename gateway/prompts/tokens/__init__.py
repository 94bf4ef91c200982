"""The conversion of text to token ids: the tokenizer, control tokens, and texts split before.

Knows: texts and ids. Does not know: messages or templates.
"""
