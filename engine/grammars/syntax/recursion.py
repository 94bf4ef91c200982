r"""The simplification of rules: `ws ::= ([ \t] ws)?` becomes `[ \t]*`.

llguidance's parser keeps an entry for each level of right recursion, and fails if the recursion is
too deep. A repetition avoids this, and can also be a part of a terminal. Rules of single characters
are inlined.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.grammars.syntax.expression import (
    EMPTY,
    All,
    AnyOf,
    Chars,
    Expression,
    Foreign,
    Repeat,
    Rule,
    in_order,
    one_of,
    repeated,
    walk,
)

# the branches that recurse, and the branches that do not
_Ways = tuple[list[Expression], list[Expression]]


def with_loops(name: str, body: Expression) -> Expression:
    """Replace recursion at the end or the beginning of a rule's `body` with a repetition."""
    for at_end in (True, False):
        ways = _ways(Rule(name), body, at_end=at_end)
        if ways is not None and all(ways):
            loop, rest = Repeat(one_of(ways[0]), 0, None), one_of(ways[1])
            return in_order([loop, rest] if at_end else [rest, loop])
    return body


def regular_rules(rules: Mapping[str, Expression]) -> set[str]:
    """Return the rules made only of characters and other such rules, without recursion."""
    waiting = {
        name: {part.name for part in walk(body) if isinstance(part, Rule)}
        for name, body in rules.items()
        if not any(isinstance(part, Foreign) for part in walk(body))
    }
    regular = set[str]()
    while found := [name for name, used in waiting.items() if used <= regular]:
        regular.update(found)
        for name in found:
            del waiting[name]
    return regular


def simplified(rules: Mapping[str, Expression]) -> dict[str, Expression]:
    """Inline rules of single characters, and merge nested repetitions."""
    single = {name: body for name, body in rules.items() if isinstance(body, Chars)}
    found = {name: _with(single, body) for name, body in rules.items()}
    more = any(isinstance(body, Chars) and name not in single for name, body in found.items())
    return simplified(found) if more else _with_single_loops(found)


def _with_single_loops(rules: Mapping[str, Expression]) -> dict[str, Expression]:
    """Rewrite `(a+ | b)*` as `(a | b)*`, which matches each text in only one way."""
    loops = {name: body for name, body in rules.items() if _is_loop(body)}

    def once(part: Expression) -> Expression:
        match loops.get(part.name, part) if isinstance(part, Rule) else part:
            case Repeat(inner, 1, None):
                return once(inner)
            case AnyOf(parts):
                return one_of(map(once, parts))
        return part

    def change(part: Expression) -> Expression:
        match part:
            case Repeat(inner, 0 | 1 as least, None):
                return Repeat(once(change(inner)), least, None)
            case Repeat(inner, least, most):
                return Repeat(change(inner), least, most)
            case All(parts):
                return in_order(map(change, parts))
            case AnyOf(parts):
                return one_of(map(change, parts))
        return part

    return {name: change(body) for name, body in rules.items()}


def _is_loop(part: Expression) -> bool:
    return isinstance(part, Repeat) and part.least == 1 and part.most is None


def _with(single: Mapping[str, Expression], part: Expression) -> Expression:
    match part:
        case Rule(name):
            return single.get(name, part)
        case All(parts):
            return in_order([_with(single, one) for one in parts])
        case AnyOf(parts):
            return one_of([_with(single, one) for one in parts])
        case Repeat(inner, least, most):
            return repeated(_with(single, inner), least, most)
    return part


def _ways(rule: Rule, body: Expression, *, at_end: bool) -> _Ways | None:
    """Divide `body` into branches with and without recursion.

    Return None if the rule also recurses anywhere else.
    """
    if body == rule:
        return [EMPTY], []
    if rule not in walk(body):
        return [], [body]
    match body:
        case AnyOf(parts):
            return _either([_ways(rule, part, at_end=at_end) for part in parts])
        case All(parts):
            edge, others = (parts[-1], parts[:-1]) if at_end else (parts[0], parts[1:])
            inner = None if rule in walk(All(others)) else _ways(rule, edge, at_end=at_end)
            if inner is None:
                return None
            again, rest = inner
            return (
                [_beside(others, one, at_end=at_end) for one in again],
                [_beside(others, one, at_end=at_end) for one in rest],
            )
        case Repeat(part, 0, 1):
            inner = _ways(rule, part, at_end=at_end)
            return None if inner is None else (inner[0], [*inner[1], EMPTY])
    return None


def _either(ways: list[_Ways | None]) -> _Ways | None:
    again, rest = list[Expression](), list[Expression]()
    for one in ways:
        if one is None:
            return None
        again += one[0]
        rest += one[1]
    return again, rest


def _beside(others: tuple[Expression, ...], edge: Expression, *, at_end: bool) -> Expression:
    return All((*others, edge) if at_end else (edge, *others))
