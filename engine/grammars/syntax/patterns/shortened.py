r"""The reduction of a pattern to texts with a maximum length, without counting characters.

    (?:[a-z]{1,63}\.)+[a-z]{2}         of at most 253 characters
    (?:[a-z]{1,63}\.){1,3}[a-z]{2}|(?:[a-z]{1,31}\.){1,7}[a-z]{2}|...

Counting characters within nested repetitions would take thousands of lexer states. Instead, bounded
repetitions get a lower bound, and repetitions without a bound get the largest bound for which no
text is too long. This is done for several lower bounds, and the result is a choice between these
alternatives. Some texts of the pattern are lost, such as a long name of many labels.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.grammars.syntax.expression import (
    All,
    AnyOf,
    Chars,
    Expression,
    Look,
    Ranges,
    Repeat,
    in_order,
    one_of,
    walk,
)
from engine.grammars.syntax.patterns.pattern import END, START

# Maximum repetitions of a part that has a bound. Each number gives one alternative.
_BOUNDS = 1 << 20, 45, 30, 20, 14, 9, 6, 3
# The maximum sum of the lengths of the alternatives' longest texts, in characters. The lexer has
# about eight states for each character.
_MAX_PLACES = 10_000


def shortened(whole: Expression, most: int) -> Expression | None:
    """Return an expression of texts of `whole` with at most `most` characters.

    Return None if no bound on the repetitions makes the texts short enough.
    """
    fewer = -(-len(_BOUNDS) * most // _MAX_PLACES)  # try only every n-th bound
    bounds = _BOUNDS[:: max(1, fewer)]
    forms = [form for bound in bounds if (form := _form(whole, bound, most)) is not None]
    return one_of(forms) if forms else None


def at_least(whole: Expression, least: int) -> Expression | None:
    """Return the texts of `whole` with at least `least` characters, if counting is not needed.

    Alternatives that have only shorter texts are removed. Return None if a remaining alternative
    has a shorter text too, or if no alternative remains.
    """
    ways = whole.parts if isinstance(whole, AnyOf) else (whole,)
    kept = [one for one in ways if _may_have(one, least)]
    return one_of(kept) if kept and all(_least(one) >= least for one in kept) else None


def without_length(read: Expression) -> tuple[Expression, int] | None:
    """Remove a look-ahead that begins a pattern and only bounds the text's length.

    Return the rest of the pattern, and the maximum number of characters. Return None if the pattern
    does not begin with such a look-ahead.
    """
    match read:
        case All(
            (first, Look(All((Repeat(Chars() as any_of, least, int(most)), *more, last))), *rest)
        ):
            pattern = in_order([first, *rest])
            is_length = first == START and last == END and not any(map(_least, more))
            is_implied = _least(pattern) >= least and _have_all(any_of.ranges, pattern)
            return (pattern, most) if is_length and is_implied else None
    return None


def _form(whole: Expression, bound: int, most: int) -> Expression | None:
    low, high = 0, most + 1  # the bound `low` fits, the bound `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        is_short = _longest(_bounded(whole, bound, middle)) <= most
        low, high = (middle, high) if is_short else (low, middle)
    return _bounded(whole, bound, low) if low else None


def _bounded(part: Expression, bound: int, for_unbounded: int) -> Expression:
    match part:
        case All(parts):
            return in_order([_bounded(one, bound, for_unbounded) for one in parts])
        case AnyOf(parts):
            return one_of([_bounded(one, bound, for_unbounded) for one in parts])
        case Repeat(inner, least, most):
            times = for_unbounded if most is None else min(most, bound)
            return Repeat(_bounded(inner, bound, for_unbounded), least, max(times, least))
    return part


def _longest(part: Expression) -> int:
    match part:
        case Chars():
            return 1
        case All(parts):
            return sum(map(_longest, parts))
        case AnyOf(parts):
            return max(map(_longest, parts), default=0)
        case Repeat(inner, _, int(most)):
            return most * _longest(inner)
    return 0


def _may_have(part: Expression, least: int) -> bool:
    """Return whether a text of `part` may have `least` characters. Return True if unknown."""
    is_bounded = all(
        isinstance(one, Chars | All | AnyOf) or (isinstance(one, Repeat) and one.most is not None)
        for one in walk(part)
    )
    return not is_bounded or _longest(part) >= least


def _least(part: Expression) -> int:
    match part:
        case Chars():
            return 1
        case All(parts):
            return sum(map(_least, parts))
        case AnyOf(parts):
            return min(map(_least, parts), default=0)
        case Repeat(inner, least):
            return least * _least(inner)
    return 0


def _have_all(ranges: Ranges, pattern: Expression) -> bool:
    leaves: Sequence[Chars] = [one for one in walk(pattern) if isinstance(one, Chars)]
    pairs = [pair for one in leaves for pair in one.ranges]
    return all(any(low <= a and b <= high for low, high in ranges) for a, b in pairs)
