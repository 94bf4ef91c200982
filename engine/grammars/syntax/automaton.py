"""An automaton that reads the texts of all terminals together.

A position is the place of one character in a terminal's expression. The same characters may lead to
positions in several terminals, so the automaton follows sets of positions. A repetition with a
large bound is treated as unbounded, which takes fewer steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from engine.grammars.syntax.expression import (
    All,
    AnyOf,
    Chars,
    Expression,
    Ranges,
    Repeat,
    Rule,
    parts_of,
    walk,
)

MANY = 8  # number of repetitions from which a bound is treated as unbounded


class TooMuch(Exception):
    """An error: the automaton takes too many steps."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """The first and the last positions of an expression's texts."""

    first: frozenset[int]
    last: frozenset[int]
    may_be_empty: bool


_EMPTY = Fragment(frozenset(), frozenset(), may_be_empty=True)
_NEVER = Fragment(frozenset(), frozenset(), may_be_empty=False)


class Automaton:
    """The automaton of all terminals."""

    def __init__(self, rules: Mapping[str, Expression], max_steps: int) -> None:
        """Make an empty automaton. Its methods raise TooMuch after `max_steps` steps in total."""
        self._rules = rules
        self._steps = max_steps
        leaves = {leaf.ranges for body in rules.values() for leaf in _leaves(body)}
        self._bits = _bits(leaves)
        self._fragments: dict[int, Fragment] = {}
        self._of: list[tuple[int, int]] = []  # (terminal, part of the terminal) of each position
        self._chars: list[Ranges] = []
        self._next: list[set[int]] = []

    def add(self, terminal: int, whole: Expression) -> None:
        """Add a terminal with the texts of the expression `whole`."""
        fragments = (self._fragment((terminal, n), p) for n, p in enumerate(parts_of(whole)))
        match whole:
            case All():
                found = self._in_order(fragments)
            case AnyOf():
                found = reduce(_either, fragments, _NEVER)
            case _:
                found = self._fragment((terminal, 0), whole)
        self._fragments[terminal] = found

    def beginnings(self, terminal: int) -> int:
        """Return the possible first bytes of the terminal's texts, as a bit set."""
        return reduce(
            or_, (first_bytes(self._chars[p]) for p in self._fragments[terminal].first), 0
        )

    def may_be_empty(self, terminal: int) -> bool:
        """Return whether the terminal may match the empty text."""
        return self._fragments[terminal].may_be_empty

    def too_long(self, followed_by: Mapping[int, int]) -> set[tuple[int, int, int]]:
        """Find terminals whose text may continue where another terminal's text can end.

        `followed_by` has for each terminal the bytes that may follow it, as a bit set. Returns
        triples: the terminal that ends, the terminal that continues, and its part that continues.
        Raises TooMuch.
        """
        found = set[tuple[int, int, int]]()
        ends = {p: t for t in followed_by for p in self._fragments[t].last}
        waiting = [frozenset(p for t in followed_by for p in self._fragments[t].first)]
        seen = set(waiting)
        while waiting:
            for reached in self._steps_from(waiting.pop()):
                after = frozenset(q for p in reached for q in self._next[p])
                self._spend(len(reached) + len(after))
                for ended in {ends[p] for p in reached if p in ends}:
                    behind = followed_by[ended]
                    longer = {self._of[q] for q in after if first_bytes(self._chars[q]) & behind}
                    found.update((ended, *other) for other in longer)
                if after and after not in seen:
                    seen.add(after)
                    waiting.append(after)
        return found

    def _steps_from(self, positions: frozenset[int]) -> Iterator[list[int]]:
        """Yield, for each class of characters, the `positions` that match the class."""
        alike = defaultdict[int, list[int]](list)
        for position in positions:
            alike[self._bits[self._chars[position]]].append(position)
        blocks: list[tuple[int, list[int]]] = []
        for bits, group in alike.items():
            rest, split = bits, list[tuple[int, list[int]]]()
            for known, members in blocks:
                if known & bits:
                    split.append((known & bits, members + group))
                if known & ~bits:
                    split.append((known & ~bits, members))
                rest &= ~known
            blocks = [*split, *([(rest, group)] if rest else [])]
            self._spend(len(blocks))
        return (members for _, members in blocks)

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooMuch

    def _fragment(self, of: tuple[int, int], part: Expression) -> Fragment:
        match part:
            case Chars(ranges):
                self._spend(1)
                position = len(self._of)
                self._of.append(of)
                self._chars.append(ranges)
                self._next.append(set())
                return Fragment(frozenset({position}), frozenset({position}), may_be_empty=False)
            case Rule(name):
                return self._fragment(of, self._rules[name])
            case All(parts):
                return self._in_order(self._fragment(of, one) for one in parts)
            case AnyOf(parts):
                return reduce(_either, (self._fragment(of, one) for one in parts), _NEVER)
            case Repeat(inner, least, most):
                return self._repeated(of, inner, least, most)
        raise AssertionError(part)

    def _repeated(
        self, of: tuple[int, int], part: Expression, least: int, most: int | None
    ) -> Fragment:
        if most is not None and most < MANY:
            must = (self._fragment(of, part) for _ in range(least))
            may = (_optional(self._fragment(of, part)) for _ in range(most - least))
            return self._in_order([*must, *may])
        one = self._fragment(of, part)
        self._join(one, one)
        return one if least else _optional(one)

    def _in_order(self, fragments: Iterable[Fragment]) -> Fragment:
        whole = _EMPTY
        for one in fragments:
            self._join(whole, one)
            first = whole.first | one.first if whole.may_be_empty else whole.first
            last = whole.last | one.last if one.may_be_empty else one.last
            whole = Fragment(first, last, whole.may_be_empty and one.may_be_empty)
        return whole

    def _join(self, one: Fragment, other: Fragment) -> None:
        self._spend(len(one.last) * len(other.first))
        for position in one.last:
            self._next[position] |= other.first


def first_bytes(ranges: Ranges) -> int:
    """Return the possible first UTF-8 bytes of these characters, as a bit set."""
    found = 0
    for low, high in ranges:
        found |= (1 << (_first_byte(high) + 1)) - (1 << _first_byte(low))
    return found


def _first_byte(code: int) -> int:
    if code < 0x80:
        return code
    if code < 0x800:
        return 0xC0 | code >> 6
    return 0xE0 | code >> 12 if code < 0x10000 else 0xF0 | code >> 18


def _either(one: Fragment, other: Fragment) -> Fragment:
    return Fragment(
        one.first | other.first, one.last | other.last, one.may_be_empty or other.may_be_empty
    )


def _optional(one: Fragment) -> Fragment:
    return Fragment(one.first, one.last, may_be_empty=True)


def _leaves(body: Expression) -> Iterator[Chars]:
    return (part for part in walk(body) if isinstance(part, Chars))


def _bits(leaves: Iterable[Ranges]) -> dict[Ranges, int]:
    """Return each set of characters as a bit set. A bit stands for a range that no set splits."""
    leaves = list(leaves)
    cuts = sorted({cut for ranges in leaves for low, high in ranges for cut in (low, high + 1)})
    place = {cut: n for n, cut in enumerate(cuts)}
    return {
        ranges: sum((1 << place[high + 1]) - (1 << place[low]) for low, high in ranges)
        for ranges in leaves
    }
