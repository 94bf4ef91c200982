"""The test of whether alternatives exclude each other, so that `oneOf` means the same as `anyOf`.

Alternatives often differ by the constant value of an optional property, such as `kind`. They
exclude each other if this property is made required. Every answer still fits the client's JSON
schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from engine.grammars.schemas.json_value import JsonObject, JsonValue, canonical

MAX_ALTERNATIVES = 200  # maximum number of alternatives, because each pair is compared
MAX_DEPTH = 8
_TYPES = {"null", "boolean", "number", "string", "array", "object"}

Resolve = Callable[[JsonValue], JsonValue]


def exclude_each_other(alternatives: Sequence[JsonValue], resolve: Resolve) -> bool:
    """Return True only if no value fits two of the alternatives."""
    return len(alternatives) <= MAX_ALTERNATIVES and _all_exclude(alternatives, resolve)


def tag_of(alternatives: Sequence[JsonValue], resolve: Resolve) -> str | None:
    """Return a property whose value determines the alternative that applies, or None."""
    resolved = [resolve(one) for one in alternatives[: MAX_ALTERNATIVES + 1]]
    properties = [_properties(one) for one in resolved]
    others = (_types(one) - {"object"} for one in resolved if isinstance(one, dict))
    if not all(properties) or any(kinds and kinds != _TYPES - {"object"} for kinds in others):
        return None
    shared = [name for name in properties[0] if all(name in one for one in properties)]
    for name in shared:
        if exclude_each_other([one[name] for one in properties], resolve):
            return name
    return None


def with_tag(schema: JsonValue, tag: str) -> JsonValue:
    """Narrow a JSON schema to the objects that have the property `tag`."""
    assert isinstance(schema, dict)
    required = [name for name in _names(schema.get("required")) if name != tag]
    return {**schema, "type": "object", "required": [*required, tag]}


def _all_exclude(schemas: Sequence[JsonValue], resolve: Resolve) -> bool:
    return all(_exclude(one, other, resolve, 0) for one, other in combinations(schemas, 2))


def _exclude(one: JsonValue, other: JsonValue, resolve: Resolve, depth: int) -> bool:
    one, other = resolve(one), resolve(other)
    if one is False or other is False:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or depth > MAX_DEPTH:
        return False
    if _types(one).isdisjoint(_types(other)):
        return True
    mine, theirs = _constants(one), _constants(other)
    if mine is not None and theirs is not None and mine.isdisjoint(theirs):
        return True
    for schema, against in ((one, other), (other, one)):
        for keyword, holds in (("anyOf", all), ("oneOf", all), ("allOf", any)):
            parts = schema.get(keyword)
            if isinstance(parts, list) and holds(
                _exclude(part, against, resolve, depth + 1) for part in parts
            ):
                return True
    return _objects_exclude(one, other, resolve, depth)


def _objects_exclude(one: JsonObject, other: JsonObject, resolve: Resolve, depth: int) -> bool:
    if _types(one) != {"object"} and _types(other) != {"object"}:
        return False
    required = {*_names(one.get("required")), *_names(other.get("required"))}
    return any(
        _exclude(_property(one, name), _property(other, name), resolve, depth + 1)
        for name in required
    )


def _property(schema: JsonObject, name: str) -> JsonValue:
    properties = _properties(schema)
    if name in properties:
        return properties[name]
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _properties(schema: JsonValue) -> JsonObject:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _names(required: JsonValue) -> list[str]:
    listed = required if isinstance(required, list) else []
    return [name for name in listed if isinstance(name, str)]


def _constants(schema: JsonObject) -> set[str] | None:
    if "const" in schema:
        return {canonical(schema["const"])}
    listed = schema.get("enum")
    return set(map(canonical, listed)) if isinstance(listed, list) else None


def _types(schema: JsonObject) -> set[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    if isinstance(kinds, list):
        return {"number" if kind == "integer" else str(kind) for kind in kinds}
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return set(map(_type, listed)) if isinstance(listed, list) else _TYPES


def _type(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
