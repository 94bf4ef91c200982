"""The replacement of `minProperties` by other keywords, for objects with optional properties.

llguidance counts properties only if all named properties are required.
"""

from __future__ import annotations

from engine.grammars.schemas.json_value import JsonObject


def with_least(schema: JsonObject) -> JsonObject:
    """Drop `minProperties` if `required` implies it, else replace it by `anyOf` of `required`."""
    least, required = schema.get("minProperties"), schema.get("required", [])
    named = schema.get("properties")
    if not isinstance(least, int) or not isinstance(required, list) or not isinstance(named, dict):
        return schema
    rest = {name: value for name, value in schema.items() if name != "minProperties"}
    if least <= len(set(map(str, required))):
        return rest
    is_one = least == 1 and named and schema.get("additionalProperties") is False
    if not is_one or "anyOf" in schema or "patternProperties" in schema:
        return schema
    return {**rest, "anyOf": [{"required": [name]} for name in named]}
