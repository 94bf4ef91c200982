"""What the benchmark of schemas says of an answer, and of a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway.bounded_schemas import bounded
from benchmarks.gateway.schemas import causes, judged, schemas_in

CITY = {"type": "object", "properties": {"city": {"maxLength": 3}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("schema", "text", "finish_reason", "kind"),
    [
        (CITY, '{"city": "Rom"}', "stop", "valid"),
        (CITY, '{"city": "Rome"}', "stop", "invalid"),
        (CITY, '{"city": "Ro', "stop", "invalid"),
        (CITY, '{"city": "Rom"}', "length", "cut"),
        ({"multipleOf": 0.1}, "2119.6", "stop", "valid"),
        ({"multipleOf": 0.1}, "2119.65", "stop", "invalid"),
        ({"$ref": "http://nowhere.invalid/x"}, "1", "stop", "not_comparable"),
        ({"pattern": "("}, '"x"', "stop", "not_comparable"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 1},
            "1",
            "stop",
            "valid",
        ),
    ],
)
def test_an_answer_is_judged(schema: Any, text: str, finish_reason: str, kind: str) -> None:
    assert judged(schema, text, finish_reason).kind == kind


def test_all_values_of_a_bounded_schema_have_bounds() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "code": {"type": "string", "pattern": "[a-z]{3}"},
            "kind": {"enum": ["a", "b"]},
            "size": {"type": ["number", "null"], "minimum": 5, "multipleOf": 0.1},
            "tags": {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 3},
            "more": {"type": "array"},
            "any": {},
        },
        "patternProperties": {"^x": {}},
    }
    assert bounded(schema) == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "code": {"type": "string", "pattern": "[a-z]{3}"},
            "kind": {"enum": ["a", "b"]},
            "size": {"type": ["integer", "null"], "minimum": 5, "maximum": 14},
            "tags": {
                "type": "array",
                "items": {"type": "string", "minLength": 20, "maxLength": 20},
                "minItems": 3,
                "maxItems": 3,
            },
            "more": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}},
            "any": {"type": "boolean"},
        },
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ('the JSON schema cannot be used: Unimplemented keys: ["if", "then"]', ["if", "then"]),
        ("the JSON schema cannot be used: regex parse error: ^(?!x)", ["regex parse error"]),
        ("a grammar of 200 characters; 100 are allowed", ["a grammar of ... characters"]),
        (
            "the JSON schema cannot be used: a $ref leads outside of the schema: Resource 'x'",
            ["a $ref leads outside of the schema"],
        ),
    ],
)
def test_a_refusal_is_counted_by_what_it_names(message: str, named: list[str]) -> None:
    assert causes(message) == named


def test_files_that_are_no_schema_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.json").write_text('{"type": "string"}')
    (tmp_path / "two.json").write_text("[]")
    (tmp_path / "three.json").write_text("{")
    assert schemas_in(tmp_path) == {"deep/one.json": {"type": "string"}}
