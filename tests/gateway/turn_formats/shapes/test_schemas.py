"""The types in a tool's schema are looked up once, at a cost bounded by the schema's size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.turn_formats.families.named.pythonic import PythonicFormat
from gateway.turn_formats.families.tagged.tagged_families import Qwen3CoderFormat
from gateway.turn_formats.shapes.schemas import alternatives, properties_of, types_of
from gateway.turn_formats.turn_format import ToolFormat, ToolSpec
from tests.gateway.turn_formats.turns import call, read

KEYS = 2000
MANY: dict[str, object] = {f"x-{n}": n for n in range(KEYS)}


class CountedSchema(dict[str, Any]):
    """A schema that counts look-ups; reading all its items counts every key."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def keys(self) -> Any:
        self.looks += len(self)
        return super().keys()

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()

    def __iter__(self) -> Iterator[str]:
        self.looks += len(self)
        return super().__iter__()


def coder_turn(times: int) -> str:
    value = "<parameter=a>\n1\n</parameter>\n"
    return f"<tool_call>\n<function=note>\n{value * times}</function>\n</tool_call>"


def pythonic_turn(times: int) -> str:
    values = ["a='1'"] * times
    return f"[note({', '.join(values)})]"


@pytest.mark.parametrize(
    ("written", "turn"), [(Qwen3CoderFormat(), coder_turn), (PythonicFormat(), pythonic_turn)]
)
def test_a_schema_is_looked_up_once_for_all_values(written: ToolFormat, turn: Any) -> None:
    def looks(times: int) -> int:
        schema = CountedSchema({**MANY, "type": "integer", "anyOf": [{} for _ in range(60)]})
        tool = ToolSpec("note", {"type": "object", "properties": {"a": schema}})
        pieces = read(written.parser([tool]), turn(times))
        values = ", ".join(['"a": 1'] * times)
        assert pieces == call("note", f"{{{values}}}")
        return schema.looks

    assert 0 < looks(40) == looks(1) < KEYS


def test_types_cost_no_more_with_other_keys_and_parts_that_repeat() -> None:
    looks = []
    for others in ({}, MANY):
        schema = CountedSchema({**others, "anyOf": [{"type": "null"}, {"$ref": "#"}]})
        assert types_of(schema, schema) == {"null"}
        looks.append(schema.looks)
    assert looks[0] >= looks[1] > 0


def test_alternatives_are_bounded_by_what_is_copied() -> None:
    union = [{"type": "string"}] * 60
    assert len(alternatives({"description": "d", "anyOf": union}, None)) == 60
    copied = sum(map(len, alternatives({**MANY, "anyOf": union}, None)))
    assert copied < 4 * KEYS


def test_properties_of_all_parts_are_merged_in_order() -> None:
    one = {"properties": {"a": {"type": "null"}, "b": {}}, "required": ["b"]}
    other = {"allOf": [one], "properties": {"c": {}}, "required": ["c"]}
    whole = {"allOf": [other, other], "properties": {"a": {"type": "string"}}}
    properties = properties_of(ToolSpec("note", whole))
    assert properties is not None
    assert list(properties.items()) == [("a", {"type": "string"}), ("b", {}), ("c", {})]
