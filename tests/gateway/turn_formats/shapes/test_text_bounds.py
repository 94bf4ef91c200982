"""Lengths and patterns of texts in formats without JSON: the grammar accepts what `jsonschema`
accepts.
"""

from __future__ import annotations

from typing import Any

import jsonschema
import llguidance
import pytest

from gateway.turn_formats.shapes.text_bounds import bounds_of
from gateway.turn_formats.turn_format import ToolSpec
from tests.gateway.turn_formats.formats import FORMATS
from tests.gateway.turn_formats.grammars import Bytes
from tests.gateway.turn_formats.turns import calls_of, read

PLAIN = ("qwen3_coder", "functiongemma", "gemma4")
MARKS = 'a\n</parameter>\nb <|"|> c'

# For each: a schema, valid texts, and invalid texts.
BOUNDS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "longest": ({"type": "string", "maxLength": 4}, ["", "a", "äöü\n"], ["abcde"]),
    "a length with a point": ({"type": "string", "maxLength": 4.0}, ["abcd"], ["abcde"]),
    "shortest": ({"type": "string", "minLength": 2}, ["ab", "abcdef"], ["", "a"]),
    "pattern": ({"type": "string", "pattern": "[0-9]{2}"}, ["a12b", "12"], ["1a2"]),
    "whole pattern": (
        {"type": "string", "pattern": "^[A-Z]{2}/[0-9]+$"},
        ["NO/47"],
        ["NO/", "aNO/4"],
    ),
    "one end": (
        {"type": "string", "pattern": "^a|b$|^c\\$"},
        ["ax", "xb", "c$d"],
        ["xa", "bx", "cd"],
    ),
    "as in JavaScript": (
        {"type": "string", "pattern": r"^[^<>()[\]]+@\d+(?:\/x)?$"},
        ["a@12", "b@1/x"],
        ["[@1", "a@", "a@1/"],
    ),
    "both": (
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3, "minLength": 2},
        ["abc", "ab"],
        ["a", "abcd", "aB"],
    ),
    "date": ({"type": "string", "format": "date"}, ["2026-11-28"], ["2026-13-01", "today"]),
    "date-time": (
        {"type": "string", "format": "date-time"},
        ["2026-11-28T12:00:00Z", "2026-11-28T12:00:00.5+01:00"],
        ["2026-11-28", "2026-11-28T25:00:00Z"],
    ),
    "uuid": (
        {"type": "string", "format": "uuid"},
        ["123e4567-e89b-12d3-a456-426614174000"],
        ["123e4567"],
    ),
    "ipv4": (
        {"type": "string", "format": "ipv4"},
        ["127.0.0.1", "255.10.1.200"],
        ["256.1.1.1", "1.2.3"],
    ),
    "ipv6": (
        {"type": "string", "format": "ipv6"},
        ["::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8", "1::", "::ffff:10.0.0.1", "1:2::3:4"],
        ["1:2:3", ":::", "1::2::3", "12345::"],
    ),
    "email": ({"type": "string", "format": "email"}, ["a.b@c.org"], ["a", "a b@c"]),
    "any format": ({"type": "string", "format": "color"}, ["red"], []),
    "words": ({"enum": ["a", "b c"]}, ["a", "b c"], ["b", "ac"]),
    "a constant": ({"const": "a"}, ["a"], ["b"]),
    "behind a reference": ({"$ref": "#/$defs/short"}, ["ab"], ["abc"]),
    "behind all": ({"allOf": [{"$ref": "#/$defs/short"}, {"pattern": "^a"}]}, ["ab"], ["abc", "b"]),
    "one of two": (
        {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "string", "pattern": "^x+$"}]},
        ["a", "xxx"],
        ["ab", "xxa"],
    ),
}
DEFS = {"short": {"type": "string", "maxLength": 2}}


def tool_of(schema: dict[str, Any]) -> ToolSpec:
    parameters = {
        "type": "object",
        "properties": {"value": schema},
        "required": ["value"],
        "additionalProperties": False,
        "$defs": DEFS,
    }
    return ToolSpec("note", parameters, strict=True)


@pytest.fixture(params=[False, True], ids=["characters", "tokens"])
def are_tokens(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("case", BOUNDS)
def test_a_forced_call_keeps_them(name: str, case: str, are_tokens: bool) -> None:
    schema, good, bad = BOUNDS[case]
    written, tool = FORMATS[name], tool_of(schema)
    vocabulary = Bytes(llguidance, written.special if are_tokens else ())
    grammar = written.format(vocabulary.special_tokens).call_grammar([tool])
    assert vocabulary.error(grammar) == ""
    for text in [*good, *bad]:
        turn = written.turn(("note", {"value": text}))
        is_valid = jsonschema.Draft202012Validator(
            tool.parameters, format_checker=jsonschema.FormatChecker()
        ).is_valid({"value": text})
        assert vocabulary.accepts(grammar, turn) == (text in good), text
        assert is_valid or text in bad
        if text in good:
            assert calls_of(read(written.parser((tool,)), [turn])) == [("note", {"value": text})]


@pytest.mark.parametrize("name", PLAIN)
def test_other_values_keep_theirs(name: str) -> None:
    written, vocabulary = FORMATS[name], Bytes(llguidance)
    for schema, good, bad in (
        ({"type": "integer", "minimum": 3, "maximum": 40}, [3, 40], [2, 41, "x"]),
        ({"enum": [1, "a", None]}, [1, "a", None], [2, "b"]),
        ({"type": ["string", "null"], "maxLength": 3}, ["abc", None], ["abcd"]),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, [[1, 2]], [["a"]]),
    ):
        grammar = written.format({}).call_grammar([tool_of(schema)])
        for value in [*good, *bad]:
            is_taken = vocabulary.accepts(grammar, written.turn(("note", {"value": value})))
            assert is_taken == (value in good), (schema, value)


def test_a_bounded_text_never_has_the_mark_that_ends_it() -> None:
    written, vocabulary = FORMATS["qwen3_coder"], Bytes(llguidance)
    grammar = written.format({}).call_grammar([tool_of({"type": "string", "minLength": 30})])
    assert vocabulary.accepts(grammar, written.turn(("note", {"value": "x" * 30})))
    assert not vocabulary.accepts(grammar, written.turn(("note", {"value": MARKS + "x" * 30})))


@pytest.mark.parametrize("count", [True, -1, "3", "1}|x{2", 2**40])
def test_a_length_that_is_no_count_is_not_written(count: object) -> None:
    assert bounds_of({"type": "string", "minLength": count}) == []
    assert bounds_of({"type": "string", "minLength": count, "maxLength": 3}) == ["/(?s:.{0,3})/"]
