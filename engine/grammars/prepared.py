"""A caller's grammar as the text that the library compiles, with white space in JSON bounded.

A small model that may write white space anywhere in JSON may write newlines for ever. So between
two tokens of JSON there is at most `WHITESPACE`, whatever the schema's own options say. A keyword
that the library cannot hold an answer to is an error, and never ignored. A `format` that it does
not know is none: as JSON Schema has it, that only describes.

Lark may have a grammar of another kind as a part: `%grammar ["gbnf", "root ::= ..."]`.

Knows: the kinds of grammars, and where schemas are in them. Does not know: whether they compile
(`check_process.py`), or tokens.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

import msgspec
from llguidance.gbnf_to_lark import gbnf_to_lark

from engine.link.messages import Grammar

# A line break and up to twenty spaces, as in JSON that is written to be read; or one space.
WHITESPACE = r"(\n[ ]{0,20}| )?"
# What may hold "%json" in Lark without being a schema: strings, regular expressions, comments.
_LARK = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|%(?P<what>json|grammar)\s*'
)

_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname"),
    *("ipv4", "ipv6", "uri", "uuid"),
}
_OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples"}

_Library = dict[str, object]  # a grammar in the library's own form
JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


class UnsoundGrammar(ValueError):
    """The text is no grammar of its kind; the message says why."""


def prepared(grammar: Grammar) -> str:
    """The grammar in the library's own form; raises UnsoundGrammar."""
    parts: list[_Library] = []
    whole = _whole(grammar, parts)
    return json.dumps({"grammars": [whole, *parts]})


def _whole(grammar: Grammar, parts: list[_Library]) -> _Library:
    """`grammar`; what it has as parts is added to `parts`."""
    match grammar.kind:
        case "json_schema":
            return {"json_schema": _bounded(_schema(grammar.text))}
        case "regex":
            return {"lark_grammar": f"start: TEXT\nTEXT: {_as_lark(grammar.text)}"}
        case "gbnf":
            return {"lark_grammar": _from_gbnf(grammar.text)}
        case "lark":
            return {"lark_grammar": _with_parts(grammar.text, parts)}


def _as_lark(regex: str) -> str:
    if not regex:
        raise UnsoundGrammar("the regular expression is empty")
    return "/" + re.sub(r"\\.|/", _escaped, regex.replace("\n", "\\n")) + "/"


def _escaped(found: re.Match[str]) -> str:
    return "\\/" if found[0] == "/" else found[0]


def _from_gbnf(text: str) -> str:
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the library raises nothing narrower for an unknown rule
        raise UnsoundGrammar(str(error)[:200] or "it is nested too deeply") from error


def _schema(text: str) -> dict[str, JsonValue]:
    try:
        return _an_object(json.loads(text))
    except RecursionError as error:
        raise UnsoundGrammar("it is nested too deeply") from error
    except ValueError as error:
        raise UnsoundGrammar(f"it is not JSON: {error}") from error


def _an_object(schema: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(schema, dict):
        raise UnsoundGrammar("a JSON schema is an object")
    return schema


def _bounded(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        known = _with_known_formats(schema)
    except RecursionError as error:
        raise UnsoundGrammar("it is nested too deeply") from error
    return {**known, "x-guidance": {"whitespace_pattern": WHITESPACE}}


def _with_known_formats(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """`schema` without the formats that the library does not know; data in it stays as it is."""
    known: dict[str, JsonValue] = {}
    for name, value in schema.items():
        if name == "format" and isinstance(value, str) and value not in _FORMATS:
            continue
        if name in _OF_SCHEMAS and isinstance(value, dict):
            value = {key: _below(inner) for key, inner in value.items()}
        known[name] = value if name in _DATA or name in _OF_SCHEMAS else _below(value)
    return known


def _below(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_below(inner) for inner in value]
    return _with_known_formats(value) if isinstance(value, dict) else value


def _with_parts(lark: str, parts: list[_Library]) -> str:
    """The same grammar; each schema in it (`%json {...}`) has white space bounded.

    A part of another kind (`%grammar [...]`) becomes a name, of what is added to `parts`.
    """
    pieces, end, decoder = list[str](), 0, json.JSONDecoder()
    while (found := _LARK.search(lark, end)) is not None:
        what = found["what"]
        pieces.append(lark[end : found.start() if what else found.end()])
        end = found.end()
        if what:
            try:
                value, end = decoder.raw_decode(lark, end)
            except (ValueError, RecursionError) as error:
                raise UnsoundGrammar(f"what follows %{what} is no JSON: {error}") from error
            pieces.append(_part(value, parts) if what == "grammar" else _inline(value))
    return "".join((*pieces, lark[end:]))


def _inline(schema: JsonValue) -> str:
    return f"%json {json.dumps(_bounded(_an_object(schema)))}"


def _part(value: JsonValue, parts: list[_Library]) -> str:
    try:
        grammar = msgspec.convert(value, Grammar)
    except msgspec.ValidationError as error:
        raise UnsoundGrammar(f"what follows %grammar is none: {error}") from error
    part: _Library = {"name": f"part_{len(parts)}"}
    parts.append(part)
    part |= _whole(grammar, parts)
    return f"@{part['name']}"
