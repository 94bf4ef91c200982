"""Grammars as trees of expressions, written so that no lexer changes their meaning.

    GBNF, Lark, a pattern  -> expressions -> terminals that end where they should -> Lark
    Lark without recursion -> expressions -> a regular expression

`gbnf.py`, `pattern.py` and `lark_reader.py` read grammars, `json_text.py` escapes texts,
`terminals.py` chooses the terminals, `lark.py` writes the grammar.
"""
