"""The grammars as trees of expressions, written so that no lexer changes their meaning.

    GBNF, Lark, a pattern  -> expressions -> terminals that cannot run on -> Lark
    Lark without recursion -> expressions -> a regular expression

`gbnf.py`, `pattern.py` and `lark_reader.py` read grammars, and `lark.py` writes the grammar.
"""
