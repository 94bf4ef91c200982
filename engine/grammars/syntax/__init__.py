"""Grammars as trees, whose meaning no lexer can change.

    GBNF, Lark, a pattern  -> expressions -> terminals that end where they should -> Lark
    Lark without recursion -> expressions -> a regular expression

`gbnf.py`, `pattern.py` and `lark_reader.py` read, `json_text.py` escapes, `terminals.py` decides,
`lark.py` writes.
"""
