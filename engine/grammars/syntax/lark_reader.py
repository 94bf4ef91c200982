r"""A reader of Lark grammars that are regular.

    start: "*** " NAME (LF line)+
    line: /.+/ -> text
    %import common.LF

A text is one of the grammar if its rules have it in some way: which terminal a lexer would have
taken is not looked at. Recursion is read where it only repeats (`list: item | list "," item`).

Knows: the spelling, and Lark's `common` terminals. Does not know: where a grammar is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.grammars.syntax.expression import (
    EMPTY,
    All,
    AnyOf,
    Chars,
    Expression,
    Repeat,
    Rule,
    UnsoundGrammar,
    in_order,
    one_of,
    parts_of,
    walk,
)
from engine.grammars.syntax.lark import regex_of
from engine.grammars.syntax.lark_terminals import COMMON, of_regex, of_text, range_of
from engine.grammars.syntax.recursion import regular_rules, with_loops

MAX_CHARS = 1 << 10  # most characters of a grammar: a request may have 128 of them
MAX_SIZE = 4000  # characters and ranges in the expression
START = "start"
_IGNORED = "%ignore"
_TOKEN = re.compile(
    r"""(?P<or>(?:[ \t]*(?:(?://|\#)[^\n]*)?\r?\n)*+[ \t]*\|)
    |(?P<line>(?:[ \t]*(?:(?://|\#)[^\n]*)?\r?\n)++)
    |(?P<gap>[ \t]+|(?://|\#)[^\n]*)
    |(?P<text>"(?:\\.|[^"\\\n])*")(?P<text_flags>i?)
    |/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[imslux]*)
    |(?P<directive>%[a-z]+)
    |(?P<count>[*+?]|~[ ]*\d{1,5}(?:[ ]*\.\.[ ]*\d{1,5})?|\{\d{1,5}(?:,\d{0,5})?\})
    |(?P<number>-?\d+)
    |(?P<name>[a-zA-Z_]\w*)
    |(?P<mark>->|\.\.|[:()\[\].,!])""",
    re.VERBOSE,
)
_NUMBERS = re.compile(r"\d+")
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def pattern_of_lark(grammar: str) -> str:
    """Return a JSON Schema pattern for the texts of the grammar.

    Raises UnsoundGrammar for a grammar that is too long, is no Lark, or is not regular.
    """
    if len(grammar) > MAX_CHARS:
        raise UnsoundGrammar(f"it has more than {MAX_CHARS} characters")
    try:
        return f"^{regex_of(_Inlined(_Reader(grammar).rules()).whole(START))}$"
    except RecursionError as error:
        raise UnsoundGrammar("it is nested too deeply") from error


class _Inlined:
    """Rules with all references replaced."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._rules = {name: with_loops(name, body) for name, body in rules.items()}
        self._regular = regular_rules(self._rules)
        self._sizes: dict[str, int] = {}

    def whole(self, name: str) -> Expression:
        """Return a rule with its references replaced; UnsoundGrammar if recursive or too large."""
        if name not in self._rules:
            raise UnsoundGrammar(f"there is no `{name}`")
        if name not in self._regular:
            for missing in self._missing():
                raise UnsoundGrammar(f"there is no `{missing}`")
            raise UnsoundGrammar("it is recursive, so it is no regular expression")
        if self._size(self._rules[name]) > MAX_SIZE:
            raise UnsoundGrammar("it is too large")
        return self._inlined(self._rules[name])

    def _missing(self) -> list[str]:
        used = (part for body in self._rules.values() for part in walk(body))
        return [one.name for one in used if isinstance(one, Rule) and one.name not in self._rules]

    def _size(self, part: Expression) -> int:
        if isinstance(part, Rule):
            if part.name not in self._sizes:
                self._sizes[part.name] = self._size(self._rules[part.name])
            return self._sizes[part.name]
        if isinstance(part, Chars):  # a terminal is written out at each reference
            return 1 + len(part.ranges) + len(part.spelled)
        return 1 + sum(map(self._size, parts_of(part)))

    def _inlined(self, part: Expression) -> Expression:
        match part:
            case Rule(name):
                return self._inlined(self._rules[name])
            case All(parts):
                return in_order([self._inlined(one) for one in parts])
            case AnyOf(parts):
                return one_of([self._inlined(one) for one in parts])
            case Repeat(inner, least, most):
                return Repeat(self._inlined(inner), least, most)
        return part


class _Reader:
    def __init__(self, grammar: str) -> None:
        self._tokens = _tokens(grammar)
        self._at = 0
        self._is_terminal = False  # kind of the definition being read
        self._ignored: list[Expression] = []

    def rules(self) -> dict[str, Expression]:
        """Read the body of each rule and terminal; `start` is the whole grammar."""
        found: dict[str, Expression] = {}
        while self._at < len(self._tokens):
            if self._take("line"):
                continue
            directive = self._take("directive")
            if directive is not None:
                self._directive(directive["directive"], found)
            else:
                self._rule(found)
            if self._at < len(self._tokens) and self._take("line") is None:
                raise self._wrong()
        found[_IGNORED] = Repeat(one_of(self._ignored), 0, None) if self._ignored else EMPTY
        if START in found:
            found[START] = in_order([found[START], Rule(_IGNORED)])
        return found

    def _rule(self, found: dict[str, Expression]) -> None:
        while self._take("count") or self._take_mark("!"):
            pass  # prefixes for the parse tree: ?rule, !rule
        name = self._name()
        if self._take_mark("."):
            self._take("number")
        if not self._take_mark(":") or name in found:
            raise self._wrong()
        self._is_terminal = name.isupper()
        found[name] = self._alternatives()

    def _directive(self, directive: str, found: dict[str, Expression]) -> None:
        match directive:
            case "%import":
                self._import(found)
            case "%ignore":
                self._is_terminal = True
                self._ignored.append(self._alternatives())
            case _:
                raise UnsoundGrammar(f"{directive} is not read")

    def _import(self, found: dict[str, Expression]) -> None:
        """Read `%import common.A -> B` or `%import common (A, B)`."""
        if self._name() != "common":
            raise UnsoundGrammar("%import is read of `common` alone")
        if self._take_mark("."):
            name = self._name()
            self._add_common(name, self._name() if self._take_mark("->") else name, found)
            return
        if not self._take_mark("("):
            raise self._wrong()
        while not self._take_mark(")"):
            name = self._name()
            self._add_common(name, name, found)
            self._take_mark(",")

    def _add_common(self, name: str, as_name: str, found: dict[str, Expression]) -> None:
        if name not in COMMON:
            raise UnsoundGrammar(f"`common.{name}` is not read")
        found[as_name] = of_regex(COMMON[name], "")

    def _alternatives(self) -> Expression:
        self._take("or")
        ways = [self._sequence()]
        while self._take("or") is not None:
            ways.append(self._sequence())
        return one_of(ways)

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while (part := self._part()) is not None:
            while (count := self._take("count")) is not None:
                part = _repeated(part, count["count"])
            parts.append(part)
        if self._take_mark("->"):
            self._name()
        return in_order(parts)

    def _part(self) -> Expression | None:
        """Read the next part of a sequence; None at its end."""
        if self._take_mark("("):
            return self._closed(")")
        if self._take_mark("["):
            return Repeat(self._closed("]"), 0, 1)
        name = self._take("name")
        if name is not None:
            return self._token(Rule(name["name"])) if name["name"].isupper() else Rule(name["name"])
        regex = self._take("regex")
        if regex is not None:
            return self._token(of_regex(regex["regex"], regex["flags"]))
        said = self._take("text")
        if said is None:
            return None
        if self._take_mark(".."):
            return self._token(range_of(said["text"], (self._take("text") or said)["text"]))
        return self._token(of_text(said["text"], said["text_flags"]))

    def _token(self, terminal: Expression) -> Expression:
        """Return the terminal, in a rule preceded by ignored texts."""
        return terminal if self._is_terminal else in_order([Rule(_IGNORED), terminal])

    def _closed(self, mark: str) -> Expression:
        inner = self._alternatives()
        if not self._take_mark(mark):
            raise self._wrong()
        return inner

    def _name(self) -> str:
        found = self._take("name")
        if found is None:
            raise self._wrong()
        return found["name"]

    def _take(self, kind: str) -> re.Match[str] | None:
        """Take the next token if it is of the kind `kind`."""
        if self._at == len(self._tokens) or self._tokens[self._at][kind] is None:
            return None
        self._at += 1
        return self._tokens[self._at - 1]

    def _take_mark(self, mark: str) -> bool:
        is_next = self._at < len(self._tokens) and self._tokens[self._at]["mark"] == mark
        self._at += is_next
        return is_next

    def _wrong(self) -> UnsoundGrammar:
        if self._at == len(self._tokens):
            return UnsoundGrammar("it ends where more must come")
        found = self._tokens[self._at]
        return UnsoundGrammar(f"`{found[0][:20]}` at character {found.start()} is not expected")


def _tokens(grammar: str) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []
    at = 0
    while at < len(grammar):
        token = _TOKEN.match(grammar, at)
        if token is None:
            raise UnsoundGrammar(f"`{grammar[at : at + 20]}` at character {at} is not read")
        at = token.end()
        if token["gap"] is None:
            found.append(token)
    return found


def _repeated(part: Expression, count: str) -> Expression:
    if count in _SIGNS:
        return Repeat(part, *_SIGNS[count])
    least, *more = map(int, _NUMBERS.findall(count))
    most = more[0] if more else None if "," in count else least
    if most is not None and most < least:
        raise UnsoundGrammar(f"{count} has its bounds in the wrong order")
    return Repeat(part, least, most)
