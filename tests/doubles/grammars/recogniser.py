"""A parser of grammars that tries every possibility, as a reference for comparisons.

It has no tokens: each part of a rule may end at any possible place.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.grammars.syntax.expression import All, AnyOf, Chars, Expression, Repeat, Rule


class Recogniser:
    """A recogniser of the texts of one rule of a grammar."""

    def __init__(self, rules: Mapping[str, Expression], root: str = "root") -> None:
        self._rules = rules
        self._root = root

    def __contains__(self, text: str) -> bool:
        return len(text) in _Reading(self._rules, text).ends(self._root)


class _Reading:
    """The places where a rule may end in one text, by the place where the rule begins."""

    def __init__(self, rules: Mapping[str, Expression], text: str) -> None:
        self._rules = rules
        self._text = text
        self._known: dict[tuple[str, int], set[int]] = {}

    def ends(self, root: str) -> set[int]:
        """Return all places where `root` may end if it begins at the text's start."""
        size = -1
        while size != (size := sum(map(len, self._known.values())) + len(self._known)):
            self._asked: set[tuple[str, int]] = set()
            found = self._of_rule(root, 0)
        return found

    def _of_rule(self, name: str, at: int) -> set[int]:
        known = self._known.setdefault((name, at), set())
        if (name, at) not in self._asked:  # not yet examined in this round
            self._asked.add((name, at))
            known |= self._of(self._rules[name], {at})
        return known

    def _of(self, part: Expression, starts: set[int]) -> set[int]:
        match part:
            case Chars(ranges):
                return {
                    at + 1 for at in starts if at < len(self._text) and _has(ranges, self._text[at])
                }
            case Rule(name):
                return {end for at in starts for end in self._of_rule(name, at)}
            case All(parts):
                for one in parts:
                    starts = self._of(one, starts)
                return starts
            case AnyOf(parts):
                return {end for one in parts for end in self._of(one, starts)}
            case Repeat(inner, least, most):
                return self._repeated(inner, least, most, starts)
        raise AssertionError(part)

    def _repeated(
        self, part: Expression, least: int, most: int | None, starts: set[int]
    ) -> set[int]:
        for _ in range(least):
            starts = self._of(part, starts)
        ends, times = set(starts), least
        while starts and (most is None or times < most):
            starts = self._of(part, starts) - ends
            ends |= starts
            times += 1
        return ends


def _has(ranges: tuple[tuple[int, int], ...], char: str) -> bool:
    return any(low <= ord(char) <= high for low, high in ranges)
