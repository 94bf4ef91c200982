"""The JSON Schema Test Suite: every text of a schema's grammar is valid under the schema.

A grammar may allow fewer texts than its schema, for example `1` but not `1.0`. A schema that no
grammar can express is refused with the keyword's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.grammars.check import checked
from engine.grammars.schemas.keywords import FORMATS
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar
from tests.engine.grammars.texts import Texts
from tests.zoo.here import here
from tests.zoo.sources import JSON_SCHEMA_SUITE

# For a `format`, a grammar checks only the spelling, not leap years or leap seconds.
CALENDAR = ("leap second", "29 days in February", "not a leap year")
# Draft 7 and earlier ignore keywords beside `$ref`. The engine applies them, as later drafts do.
BESIDE_REFERENCE = "$ref prevents a sibling $id from changing the base uri"
DRAFTS = {  # each draft, and the lowest allowed number of accepted schemas
    "draft4": 120,
    "draft6": 160,
    "draft7": 185,
    "draft2019-09": 225,
    "draft2020-12": 230,
}


def cases(draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
    directory = here(JSON_SCHEMA_SUITE) / "json" / "tests" / draft
    formats = [directory / "optional" / "format" / f"{name}.json" for name in sorted(FORMATS)]
    for path in (*sorted(directory.glob("*.json")), *formats):
        for case in json.loads(path.read_bytes()) if path.exists() else ():
            yield f"{path.stem}: {case['description']}", case


@pytest.mark.parametrize("draft", DRAFTS)
def test_what_a_schema_does_not_allow_is_not_taken(draft: str, vocabulary: Vocabulary) -> None:
    wrong, num_held, num_taken = list[str](), 0, 0
    for name, case in cases(draft):
        schema = json.dumps(case["schema"])
        error = checked(Grammar("json_schema", schema)).error
        if error:
            assert names_what_cannot_be(error), (name, error)
            continue
        num_held += 1
        texts = Texts(vocabulary, "json_schema", schema)
        for one in case["tests"]:
            is_taken = json.dumps(one["data"], ensure_ascii=False) in texts
            num_taken += is_taken
            if is_taken and not one["valid"] and not is_known(name, one["description"]):
                wrong.append(f"{name}: {one['description']}")
    assert wrong == []
    assert num_held >= DRAFTS[draft]
    assert num_taken > num_held  # positive control: the grammars allow most valid values


def is_known(name: str, description: str) -> bool:
    return BESIDE_REFERENCE in name or any(one in description for one in CALENDAR)


def names_what_cannot_be(error: str) -> bool:
    """Return whether an error names a keyword, or says that no value is valid under the schema."""
    keywords = ("the keyword `", "oneOf", "patternProperties", "$ref", "multipleOf", "format")
    whole = ("Unsatisfiable schema", "the schema `false`", "Anchor ", "Unimplemented keys: ")
    return error.startswith(whole) or any(one in error for one in keywords)
