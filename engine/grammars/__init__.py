"""Grammars of answers: checked in a process apart, compiled in threads, cached by flow.

`checker.py` bounds what a compilation may take, `token_mask.py` makes the mask for each token, and
`mask_threads.py` makes those of many sequences at once.
"""
