"""Keywords of schemas: those without effect pass; others are followed, or refused with their name
and path.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grammars.schemas.followable import followable
from engine.grammars.schemas.json_value import JsonObject, JsonValue
from engine.grammars.syntax.expression import UnsoundGrammar
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import GrammarKind
from tests.engine.grammars.texts import Texts, refusal

TEXT = {"type": "string"}
OBJECT = {"type": "object"}
NUMBER = {"type": "number"}
LIST = {"type": "array", "items": {"type": "integer"}}
# The domains in the tools of firecrawl-mcp.
HOST = r"^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$"
# Formats in the spelling of zod 4.6.
ZOD_HOST = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)
EMOJI = (
    r"^(?=[\s\S]*[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3])"
    r"[\p{Extended_Pictographic}\p{Emoji_Component}]+$"
)
LONG = "^(?:[a-z]{1,63}[.])*[a-z]{900}$"

BIND_NOTHING: dict[str, dict[str, Any]] = {
    "names of zod's records": OBJECT | {"propertyNames": TEXT},
    "any names": OBJECT | {"propertyNames": True},
    "names with a description": OBJECT | {"propertyNames": {"description": "a name", **TEXT}},
    "items that may be alike": LIST | {"uniqueItems": False},
    "one item, which is unlike others": LIST | {"uniqueItems": True, "maxItems": 1},
    "nothing depends on a name": OBJECT | {"dependentRequired": {}},
    "a name requires nothing": OBJECT | {"dependentRequired": {"a": []}},
    "schemas that depend on nothing": OBJECT | {"dependentSchemas": {"a": True, "b": {}}},
    "of draft 7": OBJECT | {"dependencies": {"a": [], "b": {"title": "any"}}},
    "anything else": OBJECT | {"unevaluatedProperties": True},
    "any other items": LIST | {"unevaluatedItems": {}},
    "all is named": LIST | {"unevaluatedItems": False},
    "no fewer than none": OBJECT | {"minProperties": 0},
    "as many as are required": {
        **OBJECT,
        "properties": {"a": TEXT, "b": TEXT},
        "required": ["a"],
        "minProperties": 1,
    },
    "not the impossible": TEXT | {"not": False},
    "a condition without a consequence": TEXT | {"if": {"const": "a"}},
    "a consequence without a condition": TEXT | {"then": {"const": "a"}, "else": False},
    "consequences that allow all": TEXT | {"if": {"const": "a"}, "then": {}, "else": True},
    "none need be contained": LIST | {"contains": {"const": 1}, "minContains": 0},
    "counts of nothing": LIST | {"minContains": 3, "maxContains": 4},
    "annotations": {
        **TEXT,
        **dict.fromkeys(("readOnly", "writeOnly", "deprecated", "nullable"), True),
        **dict.fromkeys(("title", "description", "$comment", "contentMediaType"), "x"),
        "contentSchema": {"not": {}},
        "examples": [{"not": {}}],
        "default": None,
        "x-order": 3,
        "discriminator": {"propertyName": "a"},
    },
    "an unknown draft": TEXT | {"$schema": "https://example.org/draft-x", "$id": "a.json"},
    "a name that is no URI": TEXT | {"$id": "Output Format"},
    "a name of an anchor": TEXT | {"$id": "#a"},
    "a name that is no URI, within": LIST | {"items": {"$id": "An Item"}},
    "an unknown format": TEXT | {"format": "color"},
    "keywords without a value": TEXT | dict.fromkeys(("maxLength", "pattern", "enum"), None),
    "a count that is written as a float": TEXT | {"minLength": 0.0, "maxLength": 100.0},
    "a dynamic anchor": TEXT | {"$dynamicAnchor": "a", "$recursiveAnchor": True},
    "definitions that nothing refers to": TEXT | {"$defs": {"a": {"not": TEXT}}},
}


@pytest.mark.parametrize("case", BIND_NOTHING)
def test_what_binds_nothing_passes(vocabulary: Vocabulary, case: str) -> None:
    schema = BIND_NOTHING[case]
    texts = Texts(vocabulary, "json_schema", json.dumps(schema))
    good = {"object": '{"a": "1", "bc": "2"}', "array": "[1, 1]", "string": '"a"'}
    if case == "one item, which is unlike others":
        good["array"] = "[1]"
    assert good[schema["type"]] in texts
    assert "null" not in texts


# Each entry is a schema, values that it allows, and values that it forbids.
FOLLOWED: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "true": (True, [1, {"a": None}, "x"], []),
    "empty": ({}, [1, {"a": None}, "x"], []),
    "a member that is true": (
        {"properties": {"a": True, "b": False}, **OBJECT},
        [{"a": 1}, {}],
        [{"b": 1}],
    ),
    "names of an enum": (
        OBJECT | {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": LIST},
        [{"a": [1]}, {"a": [1], "b": []}, {}],
        [{"c": [1]}, {"a": 1}],
    ),
    "names that are listed by reference": (
        OBJECT | {"propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"enum": ["a"]}}},
        [{"a": 1}],
        [{"b": 1}],
    ),
    "names of a pattern": (
        OBJECT | {"propertyNames": {"pattern": "^x-"}, "additionalProperties": TEXT},
        [{"x-a": "b"}],
        [{"a": "b"}, {"x-a": 1}],
    ),
    "names of a pattern, beside named ones": (
        {
            **OBJECT,
            "properties": {"x-a": NUMBER, "b": NUMBER},
            "propertyNames": {"pattern": "^x-"},
            "additionalProperties": TEXT,
        },
        [{"x-a": 1}, {"x-a": 1, "x-b": "c"}, {"x-b": "c"}],
        [{"b": 1}, {"x-a": "c"}, {"c": "c"}, {"x-b": 1}],
    ),
    "names of a pattern, beside others' pattern": (
        OBJECT | {"propertyNames": {"pattern": "^[a-z]+$"}, "patternProperties": {".": NUMBER}},
        [{"a": 1}, {}],
        [{"A": 1}, {"a": "b"}],
    ),
    "names of a pattern, and a length": (
        OBJECT | {"propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}},
        [{"abc": 1}],
        [{"abcd": 1}, {"A": 1}],
    ),
    "other names than listed": (
        OBJECT | {"propertyNames": {"not": {"enum": ["a", "b.c"]}}},
        [{"b": 1, "b-c": 1}],
        [{"a": 1}, {"b": 1, "b.c": 1}],
    ),
    "other names than of a pattern": (
        OBJECT | {"properties": {"$a": TEXT}, "propertyNames": {"not": {"pattern": "^[$]"}}},
        [{"a": 1}],
        [{"$b": 1}, {"$a": "b"}],
    ),
    "names of a format and its pattern, as zod writes them": (
        OBJECT | {"propertyNames": {**TEXT, "format": "email", "pattern": "^[a-z]+@[a-z]+$"}},
        [{"a@b": 1}],
        [{"a": 1}],
    ),
    "a number of nineteen digits": (
        {"type": "number", "minimum": 5e18},
        [6 * 10**18],
        [1, 4 * 10**18, -6 * 10**18],
    ),
    "an integer below nineteen digits": (
        {"type": "integer", "exclusiveMaximum": -(10**18)},
        [-2 * 10**18],
        [1, -(10**17), 2 * 10**18],
    ),
    "zod's emoji": (
        TEXT | {"format": "emoji", "pattern": EMOJI},
        ["\U0001f600", "1\ufe0f\u20e3", "\U0001f1e9\U0001f1ea"],
        ["a", "1", "", "\U0001f600a"],
    ),
    "letters of any language, one of them large": (
        TEXT | {"pattern": r"^(?=.*\p{Lu})(?!.*\d)\p{L}+$"},
        ["a\xc4", "\u0396"],
        ["a", "A1", "A "],
    ),
    "zod's host name": (
        TEXT | {"format": "hostname", "pattern": ZOD_HOST},
        ["a", "mail.example.co.uk", f"{'a' * 63}.com", ".".join(["a2345678"] * 20)],
        ["-a", "a_b.c", "a" * 64, ".".join(["a" * 62] * 5)],
    ),
    "a host name of a length": (
        TEXT | {"pattern": HOST, "maxLength": 253},
        ["example.com", f"{'a' * 63}.com"],
        ["a" * 64, ".".join(["a" * 62] * 5)],
    ),
    "a least length that an alternative does not have": (
        TEXT | {"pattern": "^$|^(a|[b-d]+)$", "minLength": 1, "maxLength": 3},
        ["a", "bcd"],
        ["", "aa", "bcdb"],
    ),
    "a least length that must be counted": (
        TEXT | {"pattern": "^(a|bb|[c-e]+)$", "minLength": 3},
        ["ccc"],
        ["a", "bb", "cc"],
    ),
    "names of a length": (OBJECT | {"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    "nothing else": (
        OBJECT | {"properties": {"a": TEXT}, "unevaluatedProperties": False},
        [{"a": "b"}],
        [{"b": 1}],
    ),
    "no other items": (
        {"type": "array", "prefixItems": [TEXT], "unevaluatedItems": False},
        [["a"]],
        [["a", 1]],
    ),
    "a pattern as of ECMA 262": (
        {**TEXT, "pattern": r"^[^()[\]]+@[^()[\]]+\/(?<n>\d)$"},
        ["a@b/1"],
        ["a[@b/1", "a@b/x"],
    ),
    "as many properties as are required": (
        OBJECT | {"properties": {"a": TEXT, "b": LIST}, "required": ["a"], "minProperties": 1},
        [{"a": "b"}, {"a": "b", "b": [1]}],
        [{}, {"b": [1]}],
    ),
    "one property of several": (
        OBJECT
        | {
            "properties": {"a": TEXT, "b": LIST},
            "additionalProperties": False,
            "minProperties": 1,
        },
        [{"a": "b"}, {"b": [1]}, {"a": "b", "b": [1]}],
        [{}, {"c": 1}],
    ),
    "an int64": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        [0, -(10**18), 10**18],
        [1.5, 10**20],
    ),
    "a float32": (
        {"type": "number", "minimum": -3.402823466385289e38, "maximum": 3.402823466385289e38},
        [0, -1.5, 10**18],
        ["a"],
    ),
    "no less than the smallest float": ({"type": "number", "minimum": 5e-324}, [1, 0.5], [-1]),
    "a pattern that is found somewhere": ({**TEXT, "pattern": "b+"}, ["abc"], ["a", ""]),
    "names by a pattern as of ECMA 262": (
        OBJECT | {"patternProperties": {r"^[\w[]+$": LIST}, "additionalProperties": False},
        [{"a[": [1]}],
        [{"a]": [1]}, {"a": 1}],
    ),
    "definitions elsewhere": (
        {"$ref": "#/components/schemas/A", "components": {"schemas": {"A": LIST}}},
        [[1]],
        ["a"],
    ),
    "an anchor": ({"$ref": "#a", "$defs": {"x": {"$anchor": "a", **LIST}}}, [[1]], ["a"]),
    "a name that references are resolved from": (
        {"$id": "http://a/b", "$ref": "c", "$defs": {"x": {"$id": "http://a/c", **LIST}}},
        [[1]],
        ["a"],
    ),
    "a pointer beside a name that is no URI": (
        {"$id": "A List", "$ref": "#/$defs/a", "$defs": {"a": LIST}},
        [[1]],
        ["a"],
    ),
    "a pointer within what has a name": (
        {
            "$ref": "#/$defs/x",
            "$defs": {
                "x": {
                    "$id": "http://a/c",
                    "items": {"$ref": "#/$defs/y"},
                    "type": "array",
                    "$defs": {"y": TEXT},
                },
                "y": LIST,
            },
        },
        [["a"]],
        ["a", [[1]]],
    ),
    "a pointer that is not quoted": (
        {"$ref": "#/$defs/My Page<Item[]>", "$defs": {"My Page<Item[]>": LIST}},
        [[1]],
        ["a"],
    ),
    "a property that can never be": (
        OBJECT | {"properties": {"a": {"not": {}}, "b": LIST}},
        [{"b": [1]}, {}],
        [{"a": "1"}],
    ),
    "a pointer with escapes": (
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": LIST}},
        [[1]],
        ["a"],
    ),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_what_binds_is_followed(vocabulary: Vocabulary, case: str) -> None:
    schema, good, bad = FOLLOWED[case]
    texts = Texts(vocabulary, "json_schema", json.dumps(schema))
    assert [value for value in good if json.dumps(value, ensure_ascii=False) not in texts] == []
    assert [value for value in bad if json.dumps(value, ensure_ascii=False) in texts] == []


REFUSED: dict[str, tuple[Any, str]] = {
    "uniqueItems": (OBJECT | {"properties": {"a": LIST | {"uniqueItems": True}}}, "#/properties/a"),
    "not": ({"anyOf": [TEXT, {"not": TEXT}]}, "`not` at #/anyOf/1"),
    "propertyNames": (OBJECT | {"propertyNames": {"format": "uuid"}}, "`propertyNames` at #"),
    "if": ({"if": TEXT, "then": {"const": "a"}}, "`if` at #"),
    "contains": (LIST | {"contains": {"const": 1}}, "`contains` at #"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "`dependentRequired` at #"),
    "unevaluatedProperties": (
        {"allOf": [OBJECT], "unevaluatedProperties": False},
        "`unevaluatedProperties` at #",
    ),
    "a pattern": (
        {"items": {"pattern": "(?<=a)b"}},
        "the pattern at #/items/pattern: a look-behind",
    ),
    "a long text's pattern": (
        TEXT | {"pattern": LONG, "maxLength": 901},
        "too large together",
    ),
    "a name's pattern": ({"patternProperties": {"(a": TEXT}}, "unclosed group"),
    "overlapping names": (
        {"patternProperties": {"a": TEXT, "b": TEXT}},
        "patternProperties whose patterns may match the same name",
    ),
    "no schema": ({"properties": {"a": 1}}, "a JSON schema is an object or a boolean"),
    "false": (False, "allows nothing"),
    "whose": ({"$comment": "tool a", "not": {}}, "tool a: the keyword `not`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_binds_and_cannot_be_had_is_refused_by_name_and_place(case: str) -> None:
    schema, why = REFUSED[case]
    assert why in refusal("json_schema", json.dumps(schema))


LENIENT: list[dict[str, Any]] = [
    LIST | {"uniqueItems": True},
    LIST | {"oneOf": [LIST, {"maxItems": 3}]},
    {"items": {"$ref": "https://example.org/elsewhere"}, "type": "array"},
    LIST | {"not": {"const": []}},
    {"type": "array", "items": {"pattern": "(?<=a)b", "type": "integer"}},
    {"type": "array", "items": {"type": ["integer", "string"], "pattern": LONG, "maxLength": 901}},
]


@pytest.mark.parametrize("schema", LENIENT, ids=json.dumps)
def test_a_lenient_one_is_followed_as_far_as_can_be(
    vocabulary: Vocabulary, schema: dict[str, Any]
) -> None:
    lark = f"start: %json {json.dumps(schema | {'x-guidance': {'lenient': True}})}"
    texts = Texts(vocabulary, "lark", lark)
    assert "[1, 2]" in texts
    assert "{}" not in texts
    assert refusal("lark", f"start: %json {json.dumps(schema)}")
    whole = schema | {"x-guidance": {"lenient": True}}
    assert refusal("json_schema", json.dumps(whole)), "a client's own wish changes nothing"


# A grammar that contains JSON, as guidance 0.3.1 sends it. guidance reads the answer by the same
# grammar.
GUIDANCE: JsonObject = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
    "lenient": False,
}


@pytest.mark.parametrize("kind", ["json_schema", "lark"])
def test_a_schema_may_forbid_white_space(vocabulary: Vocabulary, kind: GrammarKind) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "x-guidance": GUIDANCE}
    spelled = json.dumps(schema)
    texts = Texts(vocabulary, kind, spelled if kind == "json_schema" else f"start: %json {spelled}")
    assert '{"a": 1, "b": 2}' in texts
    assert '{"a":1,"b":2}' not in texts
    assert '{"a" : 1, "b": 2}' not in texts


def test_a_separator_is_one_of_json() -> None:
    ours = {"whitespace_flexible": False, "item_separator": "[a-z]"}
    assert "item_separator" in refusal("json_schema", json.dumps({"x-guidance": ours}))


def test_values_are_left_as_they_are() -> None:
    schema: JsonObject = {"const": {"not": {"pattern": "[[]"}, "a": None}, "enum": [None, 1.0]}
    assert followable(schema) | schema == followable(schema)


def test_what_is_no_json_is_none() -> None:
    with pytest.raises(UnsoundGrammar, match="neither"):
        followable("a")


def test_a_length_beside_a_pattern_is_held_where_it_can_be(vocabulary: Vocabulary) -> None:
    schema = TEXT | {"pattern": "^[a-z]+$", "maxLength": 3, "x-guidance": {"lenient": True}}
    texts = Texts(vocabulary, "lark", f"start: %json {json.dumps(schema)}")
    assert '"abc"' in texts
    assert '"abcd"' not in texts


@pytest.mark.parametrize("count", [True, -1, 1.5, "3", "1}|x{2", [1]])
@pytest.mark.parametrize("is_lenient", [False, True])
def test_a_count_is_a_whole_number(count: JsonValue, *, is_lenient: bool) -> None:
    schemas: list[JsonObject] = [
        {"type": "string", "minLength": count, "pattern": "a+"},
        {"type": "string", "maxLength": count, "format": "uuid"},
        {"type": "array", "minItems": count},
    ]
    for schema in schemas:
        with pytest.raises(UnsoundGrammar, match="is not a count"):
            followable(schema, is_lenient=is_lenient)
    names: JsonObject = {"type": "object", "propertyNames": {"minLength": count}}
    with pytest.raises(UnsoundGrammar, match="`propertyNames`"):
        followable(names)


def test_a_count_may_be_written_with_a_point() -> None:
    for keyword, inner in (("items", "minItems"), ("propertyNames", "maxLength")):
        whole, pointed = ({"type": "object", keyword: {inner: one}} for one in (3, 3.0))
        assert followable(whole) == followable(pointed)  # type: ignore[arg-type]
