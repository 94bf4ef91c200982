"""The grammars as trees of expressions, and their conversion to Lark and regular expressions.

    GBNF, Lark, a pattern  -> expressions -> terminals that cannot continue -> Lark
    Lark without recursion -> expressions -> a regular expression

`gbnf.py`, `patterns` and `lark_reader.py` read grammars. `lark.py` writes them. A written
terminal cannot match longer text than its expression, so the lexer does not change the meaning.
"""
