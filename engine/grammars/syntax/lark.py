"""A writer of expressions, in llguidance's dialect of Lark and as regular expressions.

Elsewhere: the choice of terminals (`terminals.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from types import UnionType

from engine.grammars.syntax.expression import (
    All,
    AnyOf,
    Chars,
    Expression,
    Foreign,
    Look,
    Ranges,
    Repeat,
    Rule,
    Terminal,
    walk,
)
from engine.grammars.syntax.terminals import Terminals

MAX_DEPTH = 8  # maximum depth of nested parentheses; llguidance allows 30
_NOTHING = r"[^\x{0}-\x{10FFFF}]"


def lark_of(rules: Mapping[str, Expression], root: str) -> str:
    """Write the grammar of `root` as Lark. Raises UnsoundGrammar."""
    return "\n".join(_Writer(Terminals(rules, root)).lines(root))


def regex_of(expression: Expression) -> str:
    """Write an expression without rules as a regular expression."""
    match expression:
        case Chars(ranges, spelled):
            one = _class(ranges)
            return spelled or (one[1:-1] if _is_one(expression) else one)
        case All(parts):
            return "".join(map(regex_of, parts))
        case AnyOf(parts):
            return f"(?:{'|'.join(map(regex_of, parts))})" if parts else _NOTHING
        case Repeat(part, least, most):
            return f"(?:{regex_of(part)}){_times(least, most)}"
    raise AssertionError(expression)


class _Writer:
    """A writer of one grammar. Rules get names such as r0, or R0 in terminals."""

    def __init__(self, terminals: Terminals) -> None:
        self._terminals = terminals
        self._numbers = {name: number for number, name in enumerate(terminals.texts)}
        self._named: dict[str, str] = {}

    def lines(self, root: str) -> Iterator[str]:
        yield f"start: r{self._numbers[root]}"
        for name, body in self._terminals.rules.items():
            yield f"r{self._numbers[name]}: {self._spelled(body, 0, in_text=False)}"
        for name in self._texts_within():
            body = self._terminals.texts[name]
            yield f"R{self._numbers[name]}: {self._spelled(body, 0, in_text=True)}"
        yield from (f"{name}: {body}" for body, name in self._named.items())

    def _texts_within(self) -> dict[str, None]:
        found: dict[str, None] = {}
        waiting = [
            whole
            for number, whole in enumerate(self._terminals.wholes)
            if number not in self._terminals.apart
        ]
        while waiting:
            for part in walk(waiting.pop()):
                if isinstance(part, Rule) and part.name not in found:
                    found[part.name] = None
                    waiting.append(self._terminals.texts[part.name])
        return found

    def _spelled(self, part: Expression, depth: int, *, in_text: bool) -> str:
        match self._resolved(part):
            case Chars(ranges, spelled) as leaf:
                return _literal([leaf]) if _is_one(leaf) else f"/{spelled or _class(ranges)}/"
            case Terminal(number):
                return self._terminal(self._terminals.wholes[number])
            case Rule(name):
                return f"{'R' if in_text else 'r'}{self._numbers[name]}"
            case Foreign(lark):
                return lark
            case All(parts):
                return " ".join(self._in_order(parts, depth, in_text=in_text)) or '""'
            case AnyOf(parts):
                spelled_parts = [self._spelled(one, depth, in_text=in_text) for one in parts]
                return " | ".join(spelled_parts) or f"/{_NOTHING}/"
            case Repeat(inner, least, most):
                one = self._grouped(inner, depth, All | AnyOf | Repeat, in_text=in_text)
                return f"{one}{_times(least, most)}"
            case Look():
                raise AssertionError("a look-ahead is written as what may follow it")

    def _resolved(self, part: Expression) -> Expression:
        while isinstance(part, Terminal) and part.number in self._terminals.apart:
            part = self._terminals.apart[part.number]
        return part

    def _grouped(
        self, part: Expression, depth: int, kinds: UnionType | type, *, in_text: bool
    ) -> str:
        part = self._resolved(part)
        if not isinstance(part, kinds):
            return self._spelled(part, depth, in_text=in_text)
        if depth < MAX_DEPTH:
            return f"({self._spelled(part, depth + 1, in_text=in_text)})"
        return self._name(self._spelled(part, 0, in_text=in_text), "T" if in_text else "q")

    def _in_order(self, parts: Iterable[Expression], depth: int, *, in_text: bool) -> Iterator[str]:
        for is_literal, run in groupby(parts, _is_one):
            if is_literal:
                yield _literal(run)
            else:
                yield from (self._grouped(one, depth, AnyOf, in_text=in_text) for one in run)

    def _terminal(self, whole: Expression) -> str:
        spelled = self._spelled(whole, 0, in_text=True)
        return spelled if isinstance(whole, Chars | Rule) else self._name(spelled, "T")

    def _name(self, spelled: str, kind: str) -> str:
        return self._named.setdefault(spelled, f"{kind}{len(self._named)}")


def _is_one(part: Expression) -> bool:
    return isinstance(part, Chars) and not part.spelled and _is_alone(part.ranges)


def _is_alone(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _literal(characters: Iterable[Expression]) -> str:
    codes = [part.ranges[0][0] for part in characters if isinstance(part, Chars)]
    return json.dumps("".join(map(chr, codes)))


def _class(ranges: Ranges) -> str:
    if not ranges:
        return _NOTHING
    spelled = (low if low == high else f"{low}-{high}" for low, high in map(_spelled, ranges))
    return f"[{''.join(spelled)}]"


def _spelled(pair: tuple[int, int]) -> tuple[str, str]:
    low, high = (chr(n) if n < 0x80 and chr(n).isalnum() else f"\\x{{{n:X}}}" for n in pair)
    return low, high


def _times(least: int, most: int | None) -> str:
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
    return f"{{{least},{'' if most is None else most}}}"
