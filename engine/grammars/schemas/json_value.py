"""The type of JSON values, and their comparison."""

from __future__ import annotations

import json
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]


def canonical(value: JsonValue) -> str:
    """Return a text that is the same for equal values only. 1 equals 1.0, but not true."""
    return json.dumps(_with_one_kind_of_number(value), sort_keys=True)


def _with_one_kind_of_number(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_one_kind_of_number(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _with_one_kind_of_number(inner) for name, inner in value.items()}
    return value
