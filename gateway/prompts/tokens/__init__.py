"""From text to token ids: the tokenizer, what is a control token, and texts split before already.

Knows: texts and ids. Does not know: messages or templates.
"""
