"""A least number of properties, where some of those that are named may be absent.

The library counts properties only where all that are named are required.

Knows: keywords of objects. Does not know: where a schema stands.
"""

from __future__ import annotations

from engine.grammars.schemas.json_value import JsonObject


def with_least(schema: JsonObject) -> JsonObject:
    """Return the schema without `minProperties` where `required` or one of several says it."""
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
