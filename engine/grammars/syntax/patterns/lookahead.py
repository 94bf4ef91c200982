"""The conversion of a pattern with look-aheads to an expression without look-aheads.

    ^(?=.*[0-9])[a-z0-9]+$

A look-ahead is a condition on all the text that follows. Reading a character turns a condition into
another condition on the text after it. These conditions are the states of an automaton, and an
expression is made of the paths through the states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from engine.grammars.syntax.expression import (
    MAX_CODE_POINT,
    NOTHING,
    All,
    AnyOf,
    Chars,
    Expression,
    Look,
    Repeat,
    UnsoundGrammar,
    chars,
    one_of,
    spelled_ranges,
    walk,
)
from engine.grammars.syntax.patterns.paths import Ways, path_through

MAX_STATES = 300
MAX_STEPS = 200_000  # maximum number of visits to parts of the pattern

MAX_SPELLED = 4  # maximum number of Unicode classes, because their characters are unknown here

_ANY_CHAR = chars((0, MAX_CODE_POINT))
ANY_TEXT = Repeat(_ANY_CHAR, 0, None)
# Parts that must match in this order, up to the text's end.
_Rest: TypeAlias = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class _Any:
    """The condition that any of `parts` is met. Without parts, no text meets the condition."""

    parts: frozenset[_Condition]


@dataclass(frozen=True, slots=True)
class _Every:
    """The condition that all of `parts` are met. Without parts, every text meets the condition."""

    parts: frozenset[_Condition]


@dataclass(frozen=True, slots=True)
class _Not:
    """The condition that `part` is not met."""

    part: _Condition


_Condition: TypeAlias = _Rest | _Any | _Every | _Not
_NEVER, _ALWAYS = _Any(frozenset()), _Every(frozenset())


def without_looks(pattern: Sequence[Expression], start: Expression) -> Expression:
    """Return the texts that match the parts of the pattern one after another.

    `start` is the anchor for the text's start. Raises UnsoundGrammar if no text matches, or if the
    pattern is too large.
    """
    leaves = {one for part in pattern for one in walk(part) if isinstance(one, Chars)}
    found = _Machine(start, _classes(leaves | {_ANY_CHAR})).expression(tuple(pattern))
    if found == NOTHING:
        raise UnsoundGrammar("a look-ahead that nothing can follow is not supported")
    return found


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of characters that are equal for all sets in the pattern."""

    chars: Chars
    leaves: frozenset[Chars]


class _Machine:
    def __init__(self, start: Expression, classes: Sequence[_Class]) -> None:
        self._start = start
        self._classes = classes
        self._steps = MAX_STEPS
        self._is_start = False
        self._open: set[_Rest] = set()

    def expression(self, whole: _Rest) -> Expression:
        """Find the automaton's states, and return an expression of the paths to its end states."""
        self._is_start = True
        states: dict[_Condition, int] = {}
        first, ends = [self._after(whole, one) for one in self._classes], set[int]()
        if self._may_end(whole):
            ends.add(0)
        self._is_start = False
        after: list[list[int]] = []
        waiting = [first]
        while waiting:
            reached = waiting.pop(0)
            for one in reached:
                if one in states:
                    continue
                states[one] = len(states) + 1  # 0 is the text's start
                if self._may_end(one):
                    ends.add(states[one])
                waiting.append([self._after(one, kind) for kind in self._classes])
            if len(states) > MAX_STATES:
                raise UnsoundGrammar("a look-ahead with so many cases is not supported")
            after.append([states[one] for one in reached])
        return path_through(self._ways(after), 0, ends)

    def _ways(self, after: Sequence[Sequence[int]]) -> Ways:
        ways: Ways = defaultdict(dict)
        for state, reached in enumerate(after):
            leading = defaultdict[int, list[Chars]](list)
            for kind, to in zip(self._classes, reached, strict=True):
                leading[to].append(kind.chars)
            ways[state] = {to: one_of(kinds) for to, kinds in leading.items()}
        return ways

    def _after(self, condition: _Condition, kind: _Class) -> _Condition:
        match condition:
            case _Any(parts):
                return _any(self._after(one, kind) for one in parts)
            case _Every(parts):
                return _every(self._after(one, kind) for one in parts)
            case _Not(part):
                return _not(self._after(part, kind))
        # A repetition that reads nothing adds no texts.
        if not condition or condition in self._open:
            return _NEVER
        self._spend()
        self._open.add(condition)
        try:
            return self._after_rest(condition[0], condition[1:], kind)
        finally:
            self._open.discard(condition)

    def _after_rest(self, part: Expression, then: _Rest, kind: _Class) -> _Condition:
        match part:
            case Chars():
                return _matching(then) if part in kind.leaves else _NEVER
            case All(parts):
                return self._after((*parts, *then), kind)
            case AnyOf(parts):
                return _any(self._after((one, *then), kind) for one in parts)
            case Repeat(inner, least, most):
                again = [self._after((inner, *_again(part), *then), kind)] if most != 0 else []
                return _any([*again, *([] if least else [self._after(then, kind)])])
            case Look(inner, is_negative):
                ahead = self._after((inner, ANY_TEXT), kind)
                return _every([_not(ahead) if is_negative else ahead, self._after(then, kind)])
        return self._after(then, kind) if part == self._start and self._is_start else _NEVER

    def _may_end(self, condition: _Condition) -> bool:
        match condition:
            case _Any(parts):
                return any(map(self._may_end, parts))
            case _Every(parts):
                return all(map(self._may_end, parts))
            case _Not(part):
                return not self._may_end(part)
        self._spend()
        return not condition or self._may_end_rest(condition[0], condition[1:])

    def _may_end_rest(self, part: Expression, then: _Rest) -> bool:
        match part:
            case Chars():
                return False
            case All(parts):
                return self._may_end((*parts, *then))
            case AnyOf(parts):
                return any(self._may_end((one, *then)) for one in parts)
            case Repeat(inner, least):
                return self._may_end((inner, *_again(part), *then) if least else then)
            case Look(inner, is_negative):
                return self._may_end((inner, ANY_TEXT)) != is_negative and self._may_end(then)
        return (part != self._start or self._is_start) and self._may_end(then)

    def _spend(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise UnsoundGrammar("a look-ahead in so long a pattern is not supported")


def _again(part: Repeat) -> _Rest:
    most = None if part.most is None else part.most - 1
    return () if most == 0 else (Repeat(part.part, max(part.least - 1, 0), most),)


def _matching(rest: _Rest) -> _Condition:
    return _ALWAYS if rest == (ANY_TEXT,) else rest


def _any(parts: Iterable[_Condition]) -> _Condition:
    flat = {one for part in parts for one in (part.parts if isinstance(part, _Any) else [part])}
    if _ALWAYS in flat:
        return _ALWAYS
    return flat.pop() if len(flat) == 1 else _Any(frozenset(flat))


def _every(parts: Iterable[_Condition]) -> _Condition:
    flat = {one for part in parts for one in (part.parts if isinstance(part, _Every) else [part])}
    if _NEVER in flat:
        return _NEVER
    return flat.pop() if len(flat) == 1 else _Every(frozenset(flat))


def _not(part: _Condition) -> _Condition:
    if part in (_NEVER, _ALWAYS):
        return _ALWAYS if part == _NEVER else _NEVER
    return part.part if isinstance(part, _Not) else _Not(part)


def _classes(leaves: Iterable[Chars]) -> list[_Class]:
    """Divide all characters into classes.

    Each set of characters in the pattern contains a class completely or not at all.
    """
    leaves = list(leaves)
    known, spelled = ([one for one in leaves if bool(one.spelled) == x] for x in (False, True))
    if len(spelled) > MAX_SPELLED:
        raise UnsoundGrammar("a look-ahead beside so many classes of Unicode is not supported")
    cuts = {cut for one in known for low, high in one.ranges for cut in (low, high + 1)}
    places = sorted({0, *cuts, MAX_CODE_POINT + 1})
    alike = defaultdict[frozenset[Chars], list[tuple[int, int]]](list)
    for low, beyond in pairwise(places):
        has = frozenset(o for o in known if any(a <= low <= b for a, b in o.ranges))
        alike[has].append((low, beyond - 1))
    found = [_Class(one, has) for has, pairs in alike.items() if (one := chars(*pairs)).ranges]
    for one in spelled:
        found = [half for kind in found for half in _halves(kind, one)]
    return found


def _halves(kind: _Class, spelled: Chars) -> Iterator[_Class]:
    within = kind.chars.spelled or f"[{spelled_ranges(kind.chars.ranges)}]"
    for is_in, half in ((True, spelled.spelled), (False, f"[^{spelled.spelled}]")):
        leaves = kind.leaves | {spelled} if is_in else kind.leaves
        yield _Class(Chars(kind.chars.ranges, f"[{within}&&{half}]"), leaves)
