"""Unions of schemas: those with exclusive alternatives are followed, also if only a tag tells them
apart.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest

from engine.grammars.vocabulary import Vocabulary
from tests.engine.grammars.texts import Texts, refusal

TEXT = {"type": "string"}
DEFINED = {
    "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "name": TEXT}},
    "Dog": {"type": "object", "properties": {"kind": {"enum": ["dog"]}, "good": {}}},
}
PETS = {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "$defs": DEFINED}


class Leaf(pydantic.BaseModel):
    kind: Literal["leaf"] = "leaf"
    value: int


class Branch(pydantic.BaseModel):
    kind: Literal["branch"] = "branch"
    inner: list[Annotated[Leaf | Branch, pydantic.Field(discriminator="kind")]]


TREE = pydantic.TypeAdapter(
    Annotated[Leaf | Branch, pydantic.Field(discriminator="kind")]
).json_schema()
# Each entry is a schema, values that it allows, and values that it forbids.
UNIONS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "types": ({"oneOf": [TEXT, {"type": "integer"}, {"type": ["null"]}]}, ["a", 1, None], [1.5]),
    "types by reference": (
        {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": TEXT}},
        ["a", None],
        [1],
    ),
    "constants": ({"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]}, ["a", "c"], ["d"]),
    "a tag that need not be there": (
        PETS,
        [{"kind": "cat", "name": "x"}, {"kind": "dog"}],
        [{}, {"name": "x"}],
    ),
    "a tag that has a default": (
        TREE,
        [
            {"kind": "leaf", "value": 1},
            {"kind": "branch", "inner": [{"kind": "leaf", "value": 1}]},
        ],
        [{"value": 1}, {"kind": "branch", "inner": [{}]}],
    ),
    "one name of several": (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {name: TEXT},
                    "required": [name],
                    "additionalProperties": False,
                }
                for name in "ab"
            ]
        },
        [{"a": "x"}, {"b": "x"}],
        [{}, {"a": "x", "b": "x"}],
    ),
    "a union of unions": (
        {"oneOf": [{"anyOf": [TEXT, {"type": "null"}]}, {"allOf": [{"type": "integer"}, {}]}]},
        ["a", None, 1],
        [1.5],
    ),
}


@pytest.mark.parametrize("case", UNIONS)
def test_a_union(vocabulary: Vocabulary, case: str) -> None:
    schema, good, bad = UNIONS[case]
    texts = Texts(vocabulary, "json_schema", json.dumps(schema))
    assert [value for value in good if json.dumps(value) not in texts] == []
    assert [value for value in bad if json.dumps(value) in texts] == []
    for value in good:
        jsonschema.validate(value, schema)


@pytest.mark.parametrize(
    "alternatives",
    [
        [TEXT, {"minLength": 1}],
        [{"const": 1}, {"enum": [1.0, 2]}],
        [{"type": "object"}, {"type": "object", "required": ["a"]}],
        [{"properties": {"a": TEXT}, "type": "object"}, {"properties": {"b": TEXT}}],
        [{}, {}],
    ],
    ids=json.dumps,
)
def test_what_may_be_of_two_alternatives_is_refused(alternatives: list[Any]) -> None:
    assert "overlap" in refusal("json_schema", json.dumps({"oneOf": alternatives}))


def test_what_is_referred_to_stays_where_it_is(vocabulary: Vocabulary) -> None:
    schema = {"oneOf": [TEXT, {"type": "array", "items": {"$ref": "#/oneOf/0"}}]}
    texts = Texts(vocabulary, "json_schema", json.dumps(schema))
    assert '["a", "b"]' in texts
    assert "[1]" not in texts
