"""Grammars as trees, so that what lexes them cannot change what they mean.

    GBNF or a regular expression -> expressions -> terminals that end where they should -> Lark

`gbnf.py` and `pattern.py` read, `terminals.py` decides, `lark.py` writes.
"""
