"""Grammars as trees, whose meaning no lexer can change.

    GBNF or a regular expression -> expressions -> terminals that end where they should -> Lark
    Lark without recursion       -> expressions -> a regular expression

`gbnf.py`, `pattern.py` and `lark_reader.py` read, `terminals.py` decides, `lark.py` writes.
"""
