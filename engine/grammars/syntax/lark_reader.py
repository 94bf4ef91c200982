r"""A reader of Lark grammars.

    start: "*** " NAME (LF line)+
    line: /.+/ -> text
    %import common.LF

A text belongs to the grammar if the rules can derive it in any way, even if a lexer would split it
into other terminals.
"""

from __future__ import annotations

import re

from engine.grammars.syntax.expression import (
    EMPTY,
    Expression,
    Repeat,
    Rule,
    UnsoundGrammar,
    in_order,
    one_of,
    walk,
)
from engine.grammars.syntax.lark_terminals import COMMON, of_regex, of_text, range_of

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
Rules = dict[str, Expression]
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def rules_of_lark(grammar: str) -> Rules:
    """Read rules and terminals by name.

    The rule named `START` matches the texts of the grammar. Raises UnsoundGrammar for invalid Lark,
    and for a missing rule.
    """
    try:
        rules = _Reader(grammar).rules()
    except RecursionError as error:
        raise UnsoundGrammar("it is nested too deeply") from error
    used = (part.name for body in rules.values() for part in walk(body) if isinstance(part, Rule))
    missing = next((name for name in (START, *used) if name not in rules), None)
    if missing is not None:
        raise UnsoundGrammar(f"there is no `{missing}`")
    return rules


class _Reader:
    def __init__(self, grammar: str) -> None:
        self._tokens = _tokens(grammar)
        self._at = 0
        self._is_terminal = False
        self._ignored: list[Expression] = []

    def rules(self) -> Rules:
        found: Rules = {}
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

    def _rule(self, found: Rules) -> None:
        while self._take("count") or self._take_mark("!"):
            pass  # the prefixes in ?rule and !rule affect only the parse tree
        name = self._name()
        if self._take_mark("."):
            self._take("number")
        if not self._take_mark(":") or name in found:
            raise self._wrong()
        self._is_terminal = name.isupper()
        found[name] = self._alternatives()

    def _directive(self, directive: str, found: Rules) -> None:
        match directive:
            case "%import":
                self._import(found)
            case "%ignore":
                self._is_terminal = True
                self._ignored.append(self._alternatives())
            case _:
                raise UnsoundGrammar(f"{directive} is not read")

    def _import(self, found: Rules) -> None:
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

    def _add_common(self, name: str, as_name: str, found: Rules) -> None:
        if name not in COMMON:
            raise UnsoundGrammar(f"`common.{name}` is not read")
        found[as_name] = of_regex(COMMON[name], "")

    def _alternatives(self) -> Expression:
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
        """Return the terminal. If a rule is being read, put ignored texts before the terminal."""
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
