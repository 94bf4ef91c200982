"""The conversion of a client's grammar to the text that llguidance compiles.

Lark and GBNF may contain a grammar of another kind: `%grammar ["regex", "[a-z]+"]`. Lark that
constrains a tool's argument is converted to the set of texts that it matches, because these texts
are escaped within a JSON string. Otherwise llguidance's lexer could match longer terminals than the
client means.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

import msgspec

from engine.grammars.schemas.followable import followable, schema_of
from engine.grammars.schemas.json_value import JsonValue
from engine.grammars.schemas.lengths import CanBeHeld, can_be_compiled
from engine.grammars.syntax.expression import Expression, Foreign, Ranges, Rule, UnsoundGrammar
from engine.grammars.syntax.gbnf import ROOT, Rules, renamed, rules_of
from engine.grammars.syntax.json_text import as_string, escaped
from engine.grammars.syntax.lark import lark_of, regex_of
from engine.grammars.syntax.lark_reader import START, rules_of_lark
from engine.grammars.syntax.patterns.anchors import containing_text, whole_text
from engine.link.messages import Grammar

# Matches `%json` and the like. Strings, comments and regexes are matched first, so a "%json" within
# them is skipped.
_LARK = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|%(?P<what>json|grammar|pattern)\b\s*'
)
_BEGINS = {
    **dict.fromkeys(("integer", "number"), "-0123456789"),
    "string": '"',
    "array": "[",
    "object": "{",
    "boolean": "ft",
    "null": "n",
}

_Library = dict[str, object]


def prepared(grammar: Grammar, can_be_held: CanBeHeld = can_be_compiled) -> str:
    """Convert the grammar to the form that llguidance compiles. Raises UnsoundGrammar.

    If a JSON schema's strings fail `can_be_held`, their lengths are reduced, or their bounds are
    dropped, or the grammar is refused.
    """
    try:
        whole, parts = _Preparation(can_be_held).whole(grammar)
    except RecursionError as error:
        raise UnsoundGrammar("it is nested too deeply") from error
    return json.dumps({"grammars": [whole, *parts]})


class _Preparation:
    def __init__(self, can_be_held: CanBeHeld) -> None:
        self._parts: list[_Library] = []
        self._can_be_held = can_be_held

    def whole(self, grammar: Grammar) -> tuple[_Library, list[_Library]]:
        return self._whole(grammar), self._parts

    def _whole(self, grammar: Grammar) -> _Library:
        match grammar.kind:
            case "json_schema":
                schema = schema_of(grammar.text)
                return {"json_schema": followable(schema, can_be_held=self._can_be_held)}
            case "regex":
                return {"lark_grammar": lark_of({ROOT: _of_regex(grammar.text)}, ROOT)}
            case "gbnf" | "lark_text" | "lark_string" | "clients_lark":
                rules: Rules = {}
                root = self._within(grammar, rules)
                return {"lark_grammar": lark_of(rules | {ROOT: root}, ROOT)}
            case "lark":
                return {"lark_grammar": self._with_parts(grammar.text)}

    def _rules(self, gbnf: str) -> Rules:
        others: Rules = {}
        rules = rules_of(gbnf, lambda value: self._within(_grammar(value), others))
        return rules | others

    def _within(self, grammar: Grammar, rules: Rules) -> Expression:
        match grammar.kind:
            case "regex":
                return _of_regex(grammar.text)
            case "gbnf":
                return _added(rules, self._rules(grammar.text), ROOT)
            case "lark_text":
                return _added(rules, rules_of_lark(grammar.text), START)
            case "clients_lark":
                return self._clients_lark(grammar.text, rules)
            case "lark_string":
                read = rules_of_lark(grammar.text)
                strings = {name: escaped(body) for name, body in read.items()}
                return as_string(_added(rules, strings, START))
            case "json_schema":
                schema = schema_of(grammar.text)
                return Foreign(self._inline(schema), _beginnings(schema))
            case "lark":
                return Foreign(self._named(grammar))

    def _clients_lark(self, lark: str, rules: Rules) -> Expression:
        """Convert a client's Lark to the set of texts that it matches, as the library Lark does.

        Two kinds of grammars stay with llguidance's lexer: those that use extensions of llguidance,
        and those that ignore blanks. As a set of texts with optional blanks, every name could
        continue as the next name, and masks would take too long.
        """
        if "%ignore" not in lark:
            with suppress(UnsoundGrammar):
                return _added(rules, rules_of_lark(lark), START)
        return Foreign(self._named(Grammar("lark", lark)))

    def _with_parts(self, lark: str) -> str:
        """Return the grammar with its JSON schemas (`%json {...}`) converted for llguidance.

        A part in another kind of grammar (`%grammar [...]`) is replaced by the name of a rule. A
        pattern (`%pattern "..."`) is replaced by a regular expression for the texts that contain a
        match of it.
        """
        pieces, end, decoder = list[str](), 0, json.JSONDecoder()
        while (found := _LARK.search(lark, end)) is not None:
            what = found["what"]
            pieces.append(lark[end : found.start() if what else found.end()])
            end = found.end()
            if what:
                try:
                    value, end = decoder.raw_decode(lark, end)
                except ValueError as error:
                    raise UnsoundGrammar(f"what follows %{what} is no JSON: {error}") from error
                pieces.append(self._part(what, value))
        return "".join((*pieces, lark[end:]))

    def _part(self, what: str, value: JsonValue) -> str:
        match what, value:
            case "grammar", _:
                return self._named(_grammar(value))
            case "pattern", str():
                return "/" + regex_of(containing_text(value)).replace("/", r"\/") + "/"
            case "pattern", _:
                raise UnsoundGrammar("what follows %pattern is no text")
        return self._inline(value)

    def _inline(self, schema: JsonValue) -> str:
        options = schema.get("x-guidance") if isinstance(schema, dict) else None
        is_lenient = isinstance(options, dict) and options.get("lenient") is True
        found = followable(schema, is_lenient=is_lenient, can_be_held=self._can_be_held)
        return f"%json {json.dumps(found)}"

    def _named(self, grammar: Grammar) -> str:
        part: _Library = {"name": f"part_{len(self._parts)}"}
        self._parts.append(part)
        part |= self._whole(grammar)
        return f"@{part['name']}"


def _added(rules: Rules, more: Rules, root: str) -> Rule:
    names = f"{len(rules)} "
    rules |= renamed(more, names)
    return Rule(names + root)


def _grammar(value: object) -> Grammar:
    try:
        return msgspec.convert(value, Grammar)
    except msgspec.ValidationError as error:
        raise UnsoundGrammar(f"what follows %grammar is none: {error}") from error


def _of_regex(regex: str) -> Expression:
    if not regex:
        raise UnsoundGrammar("the regular expression is empty")
    return whole_text(regex)


def _beginnings(schema: JsonValue) -> Ranges:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    begins = _BEGINS.get(kinds) if isinstance(kinds, str) else None
    return tuple((ord(char), ord(char)) for char in begins or "".join(_BEGINS.values()))
