"""Grammars of answers: checked in a separate process, compiled in threads, cached by flow.

`checker.py` bounds the time and memory of a compilation, `token_mask.py` makes the mask for each
token, and `mask_threads.py` makes the masks of many sequences at once.
"""
