r"""A reader of GBNF, the grammar format of llama.cpp.

    root ::= "a" [^b-d\n]{1,3} (other | <[17]>)*   # from here

The reader accepts everything that llama.cpp accepts, and more. Names may have `_` and letters of
any script. A line may begin with `|`, and rules may be left-recursive. `%grammar [KIND, TEXT]` is a
grammar of another kind, as in Lark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from engine.grammars.syntax.expression import (
    MAX_CODE_POINT,
    Chars,
    Expression,
    Foreign,
    Rule,
    UnsoundGrammar,
    chars,
    in_order,
    one_of,
    other_than,
    repeated,
    with_leaves,
)
from engine.grammars.syntax.expression import text as literal

ROOT = "root"
_GAP = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_WIDE_GAP = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[\w-]+")
_TOKEN = re.compile(r"(?P<no>!?)<(?:\[(?P<id>[0-9]{1,10})\]|(?P<name>[^<>\[\]\s][^<>\s]*))>")
_COUNT = re.compile(
    r"(?P<sign>[*+?])|\{\s*(?P<least>[0-9]{1,7})\s*(?P<more>,\s*(?P<most>[0-9]{1,7})?\s*)?\}"
)
_HEX = {"x": 2, "u": 4, "U": 8}
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}
_MARK = "%grammar"
_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}

Rules = dict[str, Expression]
# Converts the JSON value after `%grammar` to an expression.
ReadOther = Callable[[object], Expression]


def rules_of(text: str, other: ReadOther) -> Rules:
    """Read rules by name. Raises UnsoundGrammar for invalid GBNF or a missing rule."""
    reader = _Reader(text, other)
    rules = reader.rules()
    missing = next((name for name in (ROOT, *reader.named) if name not in rules), None)
    if missing is not None:
        raise UnsoundGrammar(f"there is no rule `{missing}`")
    return rules


def renamed(rules: Rules, prefix: str) -> Rules:
    """Return the rules with `prefix` before their names."""

    def change(part: Expression) -> Expression:
        return Rule(prefix + part.name) if isinstance(part, Rule) else part

    return {prefix + name: with_leaves(body, change) for name, body in rules.items()}


class _Reader:
    def __init__(self, text: str, other: ReadOther) -> None:
        self._text = text
        self._at = 0
        self._other = other
        self.named: list[str] = []

    def rules(self) -> Rules:
        rules: Rules = {}
        self._skip(_WIDE_GAP)
        while self._at < len(self._text):
            name = self._match(_NAME, "the name of a rule")[0]
            self._skip(_GAP)
            self._take("::=")
            self._skip(_WIDE_GAP)
            rules[name] = self._alternatives(_GAP)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._wrong("the end of the rule")
            self._skip(_WIDE_GAP)
        return rules

    def _alternatives(self, gap: re.Pattern[str]) -> Expression:
        found = [self._sequence(gap)]
        while self._next_line_goes_on():
            self._take("|")
            self._skip(_WIDE_GAP)
            found.append(self._sequence(gap))
        return one_of(found)

    def _next_line_goes_on(self) -> bool:
        """Move past a `|` at the start of the next line. Return False if there is none."""
        gap = _WIDE_GAP.match(self._text, self._at)
        assert gap is not None
        if not self._text.startswith("|", gap.end()):
            return False
        self._at = gap.end()
        return True

    def _sequence(self, gap: re.Pattern[str]) -> Expression:
        parts: list[Expression] = []
        while (part := self._part()) is not None:
            self._skip(gap)
            while (count := _COUNT.match(self._text, self._at)) is not None:
                part = self._repeated(part, count)
                self._skip(gap)
            parts.append(part)
        return in_order(parts)

    def _part(self) -> Expression | None:
        match self._text[self._at : self._at + 1]:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ".":
                self._at += 1
                return chars((0, MAX_CODE_POINT))
            case "<" | "!":
                return _token(self._match(_TOKEN, "a token"))
            case "%":
                return self._grammar()
            case char if _NAME.match(char):
                self.named.append(self._match(_NAME, "a name")[0])
                return Rule(self.named[-1])
        return None

    def _literal(self) -> Expression:
        self._at += 1
        said: list[str] = []
        while not self._is_at('"'):
            said.append(self._char())
        self._at += 1
        return literal("".join(said))

    def _class(self) -> Chars:
        self._at += 1
        is_negated = self._is_at("^")
        self._at += is_negated
        ranges: list[tuple[int, int]] = []
        while not self._is_at("]"):
            low = high = ord(self._char())
            if self._is_at("-") and not self._text.startswith("]", self._at + 1):
                self._at += 1
                high = ord(self._char())
            ranges.append((low, high))
        if not ranges:
            raise self._wrong("a character in the class")
        self._at += 1
        return other_than(tuple(ranges)) if is_negated else chars(*ranges)

    def _group(self) -> Expression:
        self._at += 1
        self._skip(_WIDE_GAP)
        inner = self._alternatives(_WIDE_GAP)
        self._take(")")
        return inner

    def _grammar(self) -> Expression:
        self._take(_MARK)
        self._skip(_GAP)
        try:
            value, self._at = json.JSONDecoder().raw_decode(self._text, self._at)
        except ValueError as error:
            raise UnsoundGrammar(f"what follows {_MARK} is no JSON: {error}") from error
        return self._other(value)

    def _repeated(self, part: Expression, count: re.Match[str]) -> Expression:
        self._at = count.end()
        if count["sign"]:
            return repeated(part, *_BOUNDS[count["sign"]])
        least = int(count["least"])
        most = least if count["more"] is None else int(count["most"]) if count["most"] else None
        if most is not None and most < least:
            raise self._wrong("a bound that is not below the other, before this")
        return repeated(part, least, most)

    def _char(self) -> str:
        char = self._text[self._at : self._at + 1]
        if not char:
            raise self._wrong("the end of what was begun")
        self._at += 1
        return self._escaped() if char == "\\" else char

    def _escaped(self) -> str:
        char = self._text[self._at : self._at + 1]
        digits = _HEX.get(char, 0)
        found = re.compile(f"[0-9A-Fa-f]{{{digits}}}").match(self._text, self._at + 1)
        if digits and found is not None and int(found[0], 16) <= MAX_CODE_POINT:
            self._at = found.end()
            return chr(int(found[0], 16))
        if not char or digits or (char.isalnum() and char not in _CONTROL):
            raise self._wrong("an escape that there is")
        self._at += 1
        return _CONTROL.get(char, char)

    def _is_at(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _skip(self, gap: re.Pattern[str]) -> None:
        found = gap.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _take(self, text: str) -> None:
        if not self._is_at(text):
            raise self._wrong(f"`{text}`")
        self._at += len(text)

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._wrong(what)
        self._at = found.end()
        return found

    def _wrong(self, expected: str) -> UnsoundGrammar:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        return UnsoundGrammar(f"line {line}, column {column}: expected {expected}")


def _token(found: re.Match[str]) -> Foreign:
    if found["id"] is not None:
        return Foreign(f"<[{'^' if found['no'] else ''}{found['id']}]>")
    if found["no"]:
        raise UnsoundGrammar(f"`{found[0]}`: a token that may not be is named by its number")
    return Foreign(f"<{found['name']}>")
