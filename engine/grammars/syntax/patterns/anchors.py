"""The resolution of a pattern's anchors: the result is the set of texts that the pattern matches.

Elsewhere: the syntax of patterns (`pattern.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.grammars.syntax.expression import (
    EMPTY,
    NOTHING,
    All,
    AnyOf,
    Chars,
    Expression,
    Foreign,
    Look,
    Repeat,
    UnsoundGrammar,
    in_order,
    one_of,
    walk,
)
from engine.grammars.syntax.patterns.lookahead import ANY_TEXT, without_looks
from engine.grammars.syntax.patterns.pattern import END, START, read_pattern
from engine.grammars.syntax.patterns.shortened import shortened, without_length


def whole_text(pattern: str) -> Expression:
    """Return the texts that the pattern matches from end to end. Raises UnsoundGrammar."""
    read = read_pattern(pattern)
    return _without_looks([read], _whole) if has_look(read) else _whole(read)


def containing_text(pattern: str) -> Expression:
    """Return the texts that contain a match of the pattern. Raises UnsoundGrammar."""
    read = read_pattern(pattern)
    if has_look(read):
        return _without_looks([ANY_TEXT, read, ANY_TEXT], _containing)
    return _containing(read)


def _without_looks(
    parts: Sequence[Expression], without_look: Callable[[Expression], Expression]
) -> Expression:
    """Return the texts that match the parts, or fewer texts if all would take too many steps."""
    try:
        return without_looks(parts, START)
    except UnsoundGrammar:
        found = without_length(parts[len(parts) // 2])
        if found is None or has_look(found[0]):
            raise
        short = shortened(without_look(found[0]), found[1])
        if short is None:
            raise
        return short


def _whole(read: Expression) -> Expression:
    return _resolved(read, is_start=True, is_end=True)


def _containing(read: Expression) -> Expression:
    found: list[Expression] = []
    for is_start in (True, False):
        for is_end in (True, False):
            before = [] if is_start else [ANY_TEXT]
            after = [] if is_end else [ANY_TEXT]
            within = _resolved(read, is_start=is_start, is_end=is_end)
            if within != NOTHING:
                found.append(in_order([*before, within, *after]))
    # The last entry allows any text around the match, so without anchors it includes the others.
    return found[-1] if not _has_anchor(read) else one_of(found) if found else NOTHING


def has_look(expression: Expression) -> bool:
    """Return whether there is a look-ahead in the expression."""
    return any(isinstance(part, Look) for part in walk(expression))


def _has_anchor(expression: Expression) -> bool:
    return any(part in (START, END) for part in walk(expression))


def _resolved(expression: Expression, *, is_start: bool, is_end: bool) -> Expression:
    """Resolve the anchors of `expression`, which is at the text's start, its end, both or neither.

    An anchor becomes the empty text where it matches, and `NOTHING` elsewhere.
    """
    match expression:
        case Foreign(lark):
            return EMPTY if (is_start if lark == "^" else is_end) else NOTHING
        case AnyOf(parts):
            found = [_resolved(part, is_start=is_start, is_end=is_end) for part in parts]
            return one_of([part for part in found if part != NOTHING])
        case Repeat(part, least, most) if _has_anchor(part):
            if most == 1 or least == most == 1:
                once = _resolved(part, is_start=is_start, is_end=is_end)
                return once if least else one_of([EMPTY, *([] if once == NOTHING else [once])])
            raise UnsoundGrammar("an anchor (^ or $) within a repetition is not supported")
        case All(parts):
            return _resolved_in_order(parts, is_start=is_start, is_end=is_end)
    return expression


def _resolved_in_order(
    parts: tuple[Expression, ...], *, is_start: bool, is_end: bool
) -> Expression:
    found: list[Expression] = []
    for place, part in enumerate(parts):
        before, after = parts[:place], parts[place + 1 :]
        one = _resolved(
            part,
            is_start=is_start and _is_reached(before, part, START),
            is_end=is_end and _is_reached(after, part, END),
        )
        if one == NOTHING:
            return NOTHING
        if one != EMPTY:
            found.append(one)
    return in_order(found)


def _is_reached(between: tuple[Expression, ...], part: Expression, anchor: Foreign) -> bool:
    """Return whether only anchors are between `part` and the sequence's start or end (`anchor`)."""
    if all(_is_anchor(other) for other in between):
        return True
    if any(one == anchor for one in walk(part)) and all(map(_may_be_empty, between)):
        raise UnsoundGrammar("an anchor (^ or $) beside what may be empty is not supported")
    return False


def _is_anchor(expression: Expression) -> bool:
    return expression in (START, END)


def _may_be_empty(expression: Expression) -> bool:
    match expression:
        case Chars():
            return False
        case Repeat(part, least):
            return least == 0 or _may_be_empty(part)
        case AnyOf(parts):
            return any(map(_may_be_empty, parts))
        case All(parts):
            return all(map(_may_be_empty, parts))
    return True
