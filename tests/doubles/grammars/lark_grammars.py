"""Published grammars in Lark for tools, with texts to test them.

Codex's grammars are in the transcripts of its requests. The others are OpenAI's examples of
grammars for custom tools, shortened, and further grammars that OpenAI's page allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark
from lark.exceptions import LarkError

_CODEX = Path(__file__).parents[2] / "gateway/dialects/responses/transcripts/codex-0.171.0.json"
_ARITHMETIC = r"""
start: expr
expr: term (SP ADD SP term)+ -> add
| term
term: factor (SP MUL SP factor)+ -> mul
| factor
factor: INT
SP: " "
ADD: "+"
MUL: "*"
%import common.INT
"""
_SQL = r"""
// Tokens
COMMA: ","
GT: ">"
SEMI: ";"
start: "SELECT"i _SP "TOP" _SP NUMBER _SP columns _SP "FROM"i _SP table where? order? SEMI
columns: column (COMMA _SP? column)*
?column: IDENT | "*"
table: IDENT
where: _SP "WHERE" _SP filter ("AND" filter)~0..2
filter: column _SP? GT _SP? (NUMBER | STRING)   # no more than that
order: _SP "ORDER BY" _SP IDENT [_SP ("DESC" | "ASC")]
_SP: /[ \t]/
IDENT: /[A-Za-z_][A-Za-z0-9_]*/
NUMBER.2: /[0-9]+/
STRING: /'[^']*'/
"""
_DATE = r"""
start: date | date " to " date
date: YEAR "-" MONTH "-" DAY
YEAR: ("19" | "20") DIGIT DIGIT
MONTH: "0" "1".."9" | "1" "0".."2"
DAY: /0[1-9]|[12]\d|3[01]/
%import common (DIGIT, LETTER)
"""
_LIST = r"""
start: list
list: item | list "," item
item: WORD | ESCAPED_STRING | SIGNED_NUMBER -> number
%import common (WORD, ESCAPED_STRING, SIGNED_NUMBER)
%import common.WS_INLINE -> BLANK
%ignore BLANK
"""
_TERMS = r"""
?start: sum
?sum: product | sum ("+" | "-") product
?product: power | product ("*" | "/") power
?power: atom ["**" power]
?atom: NUMBER | NAME ["(" [sum ("," sum)*] ")"] | STRING | "-" atom | "(" sum ")"
%import common.CNAME -> NAME
%import common.INT -> NUMBER
%import common.ESCAPED_STRING -> STRING
%import common.WS
%ignore WS
"""
_QUERY = r"""
start: query
query: "{" [pair ("," pair)*] "}"
pair: STRING ":" (value | condition)
condition: "{" OPERATOR ":" (value | "[" query ("," query)* "]") "}"
value: STRING | SIGNED_INT | "true" | "false" | "null"
OPERATOR: "\"$" ("or" | "and" | "lt" | "gt") "\""
%import common (ESCAPED_STRING, SIGNED_INT, WS_INLINE)
STRING: ESCAPED_STRING
%ignore WS_INLINE
"""
RECURSIVE = ("query", "terms")


@cache
def codex_grammars() -> dict[str, str]:
    """Return the grammars of Codex's own tools, by the tools' names."""
    return dict(_custom(json.loads(_CODEX.read_text(encoding="utf-8"))))


def _custom(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value.get("type") == "custom" and "format" in value:
        yield value["name"], value["format"]["definition"]
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _custom(one)


def lark_grammars() -> dict[str, str]:
    """Return all grammars, by name."""
    others = {"arithmetic": _ARITHMETIC, "sql": _SQL, "date": _DATE, "list": _LIST}
    others |= {"terms": _TERMS, "query": _QUERY}
    return {**codex_grammars(), **others}


class LarkTexts:
    """The texts of a grammar, judged by Lark itself."""

    def __init__(self, grammar: str) -> None:
        grammar = grammar.replace("/(.*)/", "/(.+)/?")  # Codex has terminals that may be empty
        self._lark = Lark(grammar, parser="earley", lexer="dynamic_complete", ambiguity="resolve")

    def __contains__(self, text: str) -> bool:
        try:
            self._lark.parse(text)
        except LarkError:
            return False
        return True
