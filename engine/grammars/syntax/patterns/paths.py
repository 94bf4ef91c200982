"""The conversion of an automaton to an expression, by removing its states one by one."""

from __future__ import annotations

from collections import defaultdict

from engine.grammars.syntax.expression import (
    EMPTY,
    NOTHING,
    Expression,
    Repeat,
    UnsoundGrammar,
    in_order,
    one_of,
    walk,
)

MAX_PARTS = 20_000  # maximum number of parts of an expression
_END = -1

Ways = dict[int, dict[int, Expression]]


def path_through(ways: Ways, first: int, ends: set[int]) -> Expression:
    """Return the expression of all paths from `first` to one of `ends`.

    No transition may lead to `first`. Raises UnsoundGrammar if the expression is too long.
    """
    useful = _leading_to(ways, ends)
    left: Ways = {
        state: {to: one for to, one in found.items() if to in useful}
        for state, found in ways.items()
        if state in useful or state == first
    }
    for state in ends:
        left[state][_END] = EMPTY
    while len(left) > 1:
        _take_out(left, min((one for one in left if one != first), key=lambda s: _weight(left, s)))
    return left[first].get(_END, NOTHING)


def _leading_to(ways: Ways, ends: set[int]) -> set[int]:
    before = defaultdict[int, set[int]](set)
    for state, found in ways.items():
        for to in found:
            before[to].add(state)
    reached, waiting = set(ends), list(ends)
    while waiting:
        more = before[waiting.pop()] - reached
        reached |= more
        waiting.extend(more)
    return reached


def _weight(ways: Ways, state: int) -> int:
    into = sum(state in found for other, found in ways.items() if other != state)
    return into * (len(ways[state]) - (state in ways[state]))


def _take_out(ways: Ways, state: int) -> None:
    """Remove a state, and join each path into it with each path out of it."""
    out = ways.pop(state)
    loop = out.pop(state, None)
    again = EMPTY if loop is None else Repeat(loop, 0, None)
    for found in ways.values():
        into = found.pop(state, None)
        if into is None:
            continue
        for to, onward in out.items():
            past = in_order([into, again, onward])
            found[to] = one_of([found[to], past]) if to in found else past
            _check(found[to])


def _check(expression: Expression) -> None:
    for count, _ in enumerate(walk(expression)):
        if count > MAX_PARTS:
            raise UnsoundGrammar("a look-ahead that makes so long a pattern is not supported")
