"""A JSON schema with bounds on its values: no answer that follows it is longer than some length.

Most schemas that people write allow texts, numbers, lists and objects of any length, so a model may
go on for ever within them. With bounds the answer must come to its end: one that does not is a
defect. Bounds are put on what has none: texts that have a `pattern` or a `format`, and schemas that
refer to themselves, stay as they are. A few schemas can then not be satisfied any more, which the
server says.
"""

from __future__ import annotations

from typing import Any

_BY_NAME = {"properties", "definitions", "$defs"}
_INNER = {"items", "anyOf", "oneOf", "allOf"}
_LEFT_OUT = {"patternProperties", "additionalProperties", "multipleOf"}
_CHARACTERS, _ENTRIES, _LARGEST = 8, 2, 9


def bounded(schema: Any) -> Any:
    """`schema` with bounds on all values that have none."""
    if isinstance(schema, list):
        return [bounded(one) for one in schema]
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return schema
    inner = {key: _inner(key, value) for key, value in schema.items() if key not in _LEFT_OUT}
    return {**inner, **_bounds(inner, _types(inner))} or {"type": "boolean"}


def _inner(key: str, value: Any) -> Any:
    if key in _BY_NAME:
        return {name: bounded(one) for name, one in value.items()}
    return bounded(value) if key in _INNER else value


def _types(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return kind if isinstance(kind, list) else [kind]


def _bounds(schema: dict[str, Any], types: list[str]) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    if "string" in types and not {"maxLength", "pattern", "format"} & schema.keys():
        bounds["maxLength"] = max(_CHARACTERS, schema.get("minLength", 0))
    if {"number", "integer"} & set(types):
        bounds["type"] = sorted({"integer" if one == "number" else one for one in types})
        least = bounds["minimum"] = schema.get("minimum", 0)
        bounds["maximum"] = schema.get("maximum", least + _LARGEST)
    if ("array" in types or "items" in schema) and "maxItems" not in schema:
        bounds["maxItems"] = max(_ENTRIES, schema.get("minItems", 0))
    if "array" in types and "items" not in schema:
        bounds["items"] = {"type": "boolean"}
    if "object" in types or "properties" in schema:
        bounds["additionalProperties"] = False
    return bounds
