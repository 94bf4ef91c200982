"""Translation of `propertyNames` into other keywords.

Knows: keywords of objects. Does not know: other schemas.
"""

from __future__ import annotations

from engine.grammars.schemas.json_value import JsonObject, JsonValue

_ONLY = {"type", "enum", "const"}
_LENGTHS = {"type", "minLength", "maxLength"}


def with_names(schema: JsonObject, names: JsonObject) -> JsonObject | None:
    """Write `names`, the `propertyNames` of `schema`, as other keywords; None if impossible."""
    if names.get("type", "string") != "string" or "patternProperties" in schema:
        return None
    rest = {name: value for name, value in schema.items() if name != "propertyNames"}
    binding = {name for name in names if name not in {"title", "description", "$comment"}}
    listed = names.get("enum", [names["const"]] if "const" in names else None)
    if binding <= _ONLY and isinstance(listed, list):
        return _with_listed(rest, [name for name in listed if isinstance(name, str)])
    if "properties" in schema:
        return None
    pattern = names.get("pattern")
    if binding <= {"type", "pattern"} and isinstance(pattern, str):
        return _with_pattern(rest, pattern)
    if binding <= _LENGTHS:
        least, most = names.get("minLength", 0), names.get("maxLength", "")
        return _with_pattern(rest, f"^[^]{{{least},{most}}}$")
    return None


def _with_listed(schema: JsonObject, names: list[str]) -> JsonObject:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    assert isinstance(known, dict)
    properties: dict[str, JsonValue] = {
        **{name: value for name, value in known.items() if name in names},
        **{name: others for name in names if name not in known},
    }
    return {**schema, "properties": properties, "additionalProperties": False}


def _with_pattern(schema: JsonObject, pattern: str) -> JsonObject:
    others = schema.get("additionalProperties", True)
    return {**schema, "patternProperties": {pattern: others}, "additionalProperties": False}
