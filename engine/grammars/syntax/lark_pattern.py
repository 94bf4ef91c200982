"""The conversion of rules without recursion to a regular expression.

Recursion that only expresses a repetition is allowed (`list: item | list "," item`).
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.grammars.syntax.expression import Chars, Expression, Rule, parts_of, with_leaves
from engine.grammars.syntax.lark import regex_of
from engine.grammars.syntax.recursion import regular_rules, with_loops

MAX_SIZE = 4000  # maximum number of characters and ranges in the expression


def pattern_of(rules: Mapping[str, Expression], root: str) -> str | None:
    """Return a JSON Schema pattern for the texts of `root`.

    Return None if `root` is recursive or too large.
    """
    try:
        whole = _Inlined(rules).whole(root)
        return None if whole is None else f"^{regex_of(whole)}$"
    except RecursionError:
        return None


class _Inlined:
    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._rules = {name: with_loops(name, body) for name, body in rules.items()}
        self._regular = regular_rules(self._rules)
        self._sizes: dict[str, int] = {}

    def whole(self, name: str) -> Expression | None:
        if name not in self._regular or self._size(self._rules[name]) > MAX_SIZE:
            return None
        return self._inlined(self._rules[name])

    def _size(self, part: Expression) -> int:
        if isinstance(part, Rule):
            if part.name not in self._sizes:
                self._sizes[part.name] = self._size(self._rules[part.name])
            return self._sizes[part.name]
        # all ranges of a set of characters are written out
        if isinstance(part, Chars):
            return 1 + len(part.ranges) + len(part.spelled)
        return 1 + sum(map(self._size, parts_of(part)))

    def _inlined(self, part: Expression) -> Expression:
        return with_leaves(
            part, lambda one: self._inlined(self._rules[one.name]) if isinstance(one, Rule) else one
        )
