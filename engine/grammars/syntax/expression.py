"""The expressions of a grammar: characters, and combinations of expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

# (first, last) code point of each range, both included.
Ranges: TypeAlias = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # code points that no valid text contains


class UnsoundGrammar(ValueError):
    """An error: a text is not a valid grammar of its kind. The message says why."""


@dataclass(frozen=True, slots=True)
class Chars:
    """Any one character of a set.

    `spelled` is a regular expression for a set whose exact ranges are unknown. The `ranges` then
    include at least all characters of the set.
    """

    ranges: Ranges
    spelled: str = ""


@dataclass(frozen=True, slots=True)
class All:
    """A sequence of parts. Without parts, only the empty text matches."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A choice between its parts. Without parts, no text matches."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repetition of `part`, from `least` to `most` times, unbounded without `most`."""

    part: Expression
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """A look-ahead in a pattern: the text that follows must, or must not, begin with `part`."""

    part: Expression
    is_negative: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to a rule by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """A piece of Lark that characters cannot express, such as a token or a JSON value."""

    lark: str
    first: Ranges = ()  # characters with which the piece can begin


@dataclass(frozen=True, slots=True)
class Terminal:
    """A reference to a terminal by its number."""

    number: int


Expression: TypeAlias = Chars | All | AnyOf | Repeat | Look | Rule | Foreign | Terminal

EMPTY = All(())
NOTHING = AnyOf(())


def chars(*ranges: tuple[int, int]) -> Chars:
    """Make an expression of one character of any of the ranges."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1] < _SURROGATES[0]:
        return Chars(ranges)
    return Chars(_joined(_without_surrogates(ranges)))


def other_than(ranges: Ranges) -> Chars:
    """Make an expression of one character outside the ranges."""
    others, start = list[tuple[int, int]](), 0
    for low, high in _joined(ranges):
        if start < low:
            others.append((start, low - 1))
        start = high + 1
    return chars(*others, *([(start, MAX_CODE_POINT)] if start <= MAX_CODE_POINT else []))


def spelled_ranges(ranges: Ranges) -> str:
    """Write the ranges in the syntax used within the brackets of a regular expression."""
    return "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in ranges)


def text(literal: str) -> Expression:
    """Make an expression that matches exactly the text `literal`."""
    return in_order([chars((ord(char), ord(char))) for char in literal])


def in_order(parts: Iterable[Expression]) -> Expression:
    """Make a sequence of `parts`."""
    flat = [one for part in parts for one in (part.parts if isinstance(part, All) else [part])]
    return flat[0] if len(flat) == 1 else All(tuple(flat))


def repeated(part: Expression, least: int, most: int | None) -> Expression:
    """Make an expression that repeats `part`. Nested options `(x (x)?)?` become `x{0,2}`."""
    match part:
        case All((*before, Repeat(again, 0, int(more)))) if (least, most) == (0, 1):
            if in_order(before) == again:
                return Repeat(again, 0, more + 1)
    return Repeat(part, least, most)


def one_of(parts: Iterable[Expression]) -> Expression:
    """Make a choice of one of `parts`. All single characters are joined into one set."""
    flat = [one for part in parts for one in (part.parts if isinstance(part, AnyOf) else [part])]
    single = [one for one in flat if isinstance(one, Chars) and not one.spelled]
    others = list(dict.fromkeys(one for one in flat if one not in single))
    if single:
        others.insert(0, chars(*(pair for one in single for pair in one.ranges)))
    return others[0] if len(others) == 1 else AnyOf(tuple(others))


def parts_of(expression: Expression) -> tuple[Expression, ...]:
    """Return the direct parts of `expression`."""
    match expression:
        case All(parts) | AnyOf(parts):
            return parts
        case Repeat(part) | Look(part):
            return (part,)
    return ()


def with_leaves(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return `expression` with `change` applied to each part that has no parts itself."""
    match expression:
        case All(parts) if parts:
            return in_order([with_leaves(one, change) for one in parts])
        case AnyOf(parts) if parts:
            return one_of([with_leaves(one, change) for one in parts])
        case Repeat(part, least, most):
            return Repeat(with_leaves(part, change), least, most)
    return change(expression)


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield `expression` and all expressions in it, but not those of the rules it refers to."""
    waiting = [expression]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(parts_of(found))


def _without_surrogates(ranges: Ranges) -> Iterator[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in ranges:
        if low < first:
            yield low, min(high, first - 1)
        if high > last:
            yield max(low, last + 1), high


def _joined(ranges: Iterator[tuple[int, int]] | Ranges) -> Ranges:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        elif low <= high:
            joined.append((low, high))
    return tuple(joined)
