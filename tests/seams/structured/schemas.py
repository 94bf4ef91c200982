"""A hundred JSON schemas, by name, each with a feature of JSON Schema that programs use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]

WORD: Schema = {"type": "string", "maxLength": 6}
BIT: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": 99}


def record(required: Iterable[str] | None = None, /, **properties: Any) -> Schema:
    """Make a schema of an object with only these properties; by default all are required."""
    named = list(properties) if required is None else list(required)
    return {
        "type": "object",
        "properties": properties,
        "required": named,
        "additionalProperties": False,
    }


def some(items: Schema, most: int = 2, **more: Any) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, **more}


def text(**more: Any) -> Schema:
    return record(a={"type": "string", **more})


def number(kind: str, **more: Any) -> Schema:
    return record(a={"type": kind, **more})


TYPES: dict[str, Schema] = {
    "nothing required": record([], a=BIT, b=NUMBER),
    "no properties": record(),
    "boolean": record(a=BIT),
    "null": record(a={"type": "null"}),
    "integer": record(a=NUMBER),
    "two types": record(a={"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
    "three types": record(a={"type": ["string", "boolean", "null"], "maxLength": 3}),
    "an array at the top": some(NUMBER, 3),
    "a string at the top": WORD,
    "a number at the top": NUMBER,
    "an enum at the top": {"enum": ["a", 1, None, True, [1], {"a": 1}]},
    "const": record(a={"const": "x"}, b={"const": 3}, c={"const": None}),
    "const object": record(a={"const": {"b": [1, "ä"]}}),
    "enum of texts": record(a={"type": "string", "enum": ["red", "blue", "a b", '"', "\\", "ä"]}),
    "enum of numbers": record(a={"enum": [1, 2.5, -3]}),
    "long enum": record(a={"enum": [f"value {number}" for number in range(500)]}),
    "description and title": {**record(a=BIT), "title": "T", "description": "D", "examples": [1]},
    "default": record([], a={"type": "integer", "default": 1, "minimum": 0, "maximum": 9}),
    "$schema and $id": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/a.json",
        **record(a=BIT),
    },
    "draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", **record(a=BIT)},
    "comment": {"$comment": "x", **record(a=BIT)},
    "deprecated and read only": record(a={**BIT, "deprecated": True, "readOnly": True}),
}
TEXTS: dict[str, Schema] = {
    "max length": text(maxLength=5),
    "min length": text(minLength=3, maxLength=5),
    "no length": text(maxLength=0),
    "long": text(minLength=60, maxLength=60),
    "pattern": text(pattern="^[a-z]{2,4}$"),
    "pattern of digits": text(pattern=r"^\d{3}-\d{2}$"),
    "pattern without anchors": text(pattern="[0-9]", maxLength=6),
    "pattern and length": text(pattern="^[a-c]+$", minLength=2, maxLength=4),
    "pattern with a choice": text(pattern="^(cat|dog|ä+b?)$", maxLength=5),
    "pattern with a look-ahead": text(pattern="^(?=a)[a-z]{3}$"),
    "pattern with a back reference": text(pattern=r"^(a|b)\1$"),
    "pattern of unicode": text(pattern="^[é-ü]{1,3}$"),
    "date": text(format="date"),
    "time": text(format="time"),
    "date-time": text(format="date-time"),
    "email": text(format="email", maxLength=30),
    "uuid": text(format="uuid"),
    "ipv4": text(format="ipv4"),
    "ipv6": text(format="ipv6"),
    "uri": text(format="uri", maxLength=30),
    "hostname": text(format="hostname", maxLength=20),
    "duration": text(format="duration"),
    "unknown format": text(format="color", maxLength=4),
    "regex format": text(format="regex", maxLength=4),
    "content encoding": text(contentEncoding="base64", maxLength=4),
}
NUMBERS: dict[str, Schema] = {
    "bounds": number("integer", minimum=-5, maximum=5),
    "exclusive bounds": number("integer", exclusiveMinimum=0, exclusiveMaximum=10),
    "large bounds": number("integer", minimum=10**12, maximum=10**13),
    "bounds of a number": number("number", minimum=0, maximum=1),
    "exclusive bounds of a number": number("number", exclusiveMinimum=0, exclusiveMaximum=1.5),
    "negative number": number("number", minimum=-2.5, maximum=-0.5),
    "multiples": number("integer", minimum=0, maximum=100, multipleOf=5),
    "multiples of a part": number("number", minimum=0, maximum=1, multipleOf=0.25),
    "one value": number("integer", minimum=7, maximum=7),
    "no value": number("integer", minimum=8, maximum=7),
}
ARRAYS: dict[str, Schema] = {
    "most": record(a=some(NUMBER, 3)),
    "least": record(a=some(NUMBER, 4, minItems=2)),
    "exactly": record(a=some(BIT, 3, minItems=3)),
    "empty": record(a=some(NUMBER, 0)),
    "of objects": record(a=some(record(b=NUMBER, c=WORD))),
    "of arrays": record(a=some(some(BIT), 2)),
    "tuple": record(
        a={"type": "array", "prefixItems": [NUMBER, BIT], "items": False, "minItems": 2}
    ),
    "tuple and rest": record(a={**some(BIT, 4), "prefixItems": [NUMBER], "minItems": 1}),
    "old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **record(a={"type": "array", "items": [NUMBER, BIT], "maxItems": 2}),
    },
    "unique": record(a=some(NUMBER, 3, uniqueItems=True)),
    "contains": record(a={**some(NUMBER, 3), "contains": {"const": 1}}),
    "any items": record(a={"type": "array", "maxItems": 1, "items": NUMBER}),
}
OBJECTS: dict[str, Schema] = {
    "nested": record(a=record(b=record(c=record(d=NUMBER)))),
    "nested arrays": record(a=some(record(b=some(record(c=BIT))))),
    "ten deep": {},
    "hundred fields": record(**{f"field_{number}": BIT for number in range(100)}),
    "hundred optional fields": record([], **{f"field_{number}": BIT for number in range(100)}),
    "some required": record(["b"], a=NUMBER, b=BIT, c=WORD),
    "unicode keys": record(**{"größe": NUMBER, "名前": WORD, "😀": BIT, "a b": BIT}),
    "odd keys": record(**{'"': BIT, "\\": BIT, "": BIT, "a\nb": BIT, "$ref": BIT}),
    "required without a property": {
        **record(a=BIT),
        "required": ["a", "b"],
        "additionalProperties": NUMBER,
        "maxProperties": 2,
    },
    "additional of a type": {"type": "object", "additionalProperties": BIT, "maxProperties": 2},
    "named and additional": {**record(a=BIT), "additionalProperties": NUMBER, "maxProperties": 3},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,2}$": NUMBER},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "property names": {
        "type": "object",
        "propertyNames": {"enum": ["a", "b"]},
        "additionalProperties": BIT,
    },
    "least properties": {
        "type": "object",
        "additionalProperties": BIT,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "dependent required": {**record([], a=BIT, b=BIT), "dependentRequired": {"a": ["b"]}},
    "dependent schemas": {
        **record([], a=BIT, b=BIT),
        "dependentSchemas": {"a": {"required": ["b"]}},
    },
    "unevaluated": {
        "type": "object",
        "properties": {"a": BIT},
        "required": ["a"],
        "unevaluatedProperties": False,
    },
}
for _ in range(10):
    OBJECTS["ten deep"] = record(a=OBJECTS["ten deep"] or NUMBER)
CHOICES: dict[str, Schema] = {
    "anyOf": record(a={"anyOf": [NUMBER, WORD, {"type": "null"}]}),
    "anyOf of objects": {"anyOf": [record(a=NUMBER), record(b=BIT, c=WORD)]},
    "oneOf": record(a={"oneOf": [NUMBER, BIT]}),
    "oneOf with a tag": {
        "oneOf": [record(kind={"const": "a"}, x=NUMBER), record(kind={"const": "b"}, y=BIT)]
    },
    "oneOf that overlap": {
        "oneOf": [record(["a"], a=NUMBER, b=BIT), record(["b"], a=NUMBER, b=BIT)]
    },
    "discriminator": {
        "oneOf": [record(kind={"const": "a"}), record(kind={"const": "b"}, y=BIT)],
        "discriminator": {"propertyName": "kind"},
    },
    "allOf": {"allOf": [record(a=NUMBER)]},
    "allOf of two": {
        "allOf": [
            {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]},
            {"type": "object", "properties": {"b": BIT}, "required": ["b"]},
        ],
        "type": "object",
        "properties": {"a": True, "b": True},
        "additionalProperties": False,
    },
    "not": record(a={"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 3}}),
    "if": {**record(a=BIT, b=NUMBER), "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "nullable": record(a={**NUMBER, "nullable": True}),
    "true": record(a=NUMBER, b={"anyOf": [True], "enum": [1, 2]}),
    "false": record([], a=NUMBER, b=False),
}
TREE: Schema = record(value=NUMBER, children=some({"$ref": "#/$defs/node"}))
REFERENCES: dict[str, Schema] = {
    "$defs": {**record(a={"$ref": "#/$defs/b"}), "$defs": {"b": record(c=NUMBER)}},
    "definitions": {
        **record(a={"$ref": "#/definitions/b"}),
        "definitions": {"b": {"enum": ["x", "y"]}},
    },
    "two of one": {
        **record(a={"$ref": "#/$defs/b"}, c={"$ref": "#/$defs/b"}),
        "$defs": {"b": record(d=BIT)},
    },
    "of a reference": {
        **record(a={"$ref": "#/$defs/b"}),
        "$defs": {"b": {"$ref": "#/$defs/c"}, "c": NUMBER},
    },
    "beside others": {
        **record(a={"$ref": "#/$defs/b", "description": "x"}),
        "$defs": {"b": NUMBER},
    },
    "an odd name": {**record(a={"$ref": "#/$defs/b~1c%20d"}), "$defs": {"b/c d": NUMBER}},
    "into a property": record(a=NUMBER, b={"$ref": "#/properties/a"}),
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": TREE}},
    "recursive root": record(["a"], a=NUMBER, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "recursive list": {
        **record(a={"$ref": "#/$defs/list"}),
        "$defs": {"list": record([], head=NUMBER, tail={"$ref": "#/$defs/list"})},
    },
    "mutually recursive": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": record([], b={"$ref": "#/$defs/b"}, n=NUMBER),
            "b": record([], a={"$ref": "#/$defs/a"}, m=BIT),
        },
    },
    "anchor": {
        **record(a={"$ref": "#here"}),
        "$defs": {"b": {"$anchor": "here", **NUMBER}},
    },
    "dynamic": {
        **record(a={"$dynamicRef": "#here"}),
        "$defs": {"b": {"$dynamicAnchor": "here", **NUMBER}},
    },
    "remote": record(a={"$ref": "https://example.org/s.json"}),
    "nowhere": record(a={"$ref": "#/$defs/none"}),
}
ALL: dict[str, dict[str, Schema]] = {
    "types": TYPES,
    "texts": TEXTS,
    "numbers": NUMBERS,
    "arrays": ARRAYS,
    "objects": OBJECTS,
    "choices": CHOICES,
    "references": REFERENCES,
}
