"""What the benchmark of schemas says of an answer, and of a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway.schemas import causes, judged, schemas_in

CITY = {"type": "object", "properties": {"city": {"maxLength": 3}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("schema", "text", "finish_reason", "kind"),
    [
        (CITY, '{"city": "Rom"}', "stop", "valid"),
        (CITY, '{"city": "Rome"}', "stop", "invalid"),
        (CITY, '{"city": "Ro', "stop", "invalid"),
        (CITY, '{"city": "Rom"}', "length", "cut"),
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
