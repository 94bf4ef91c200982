"""The translation of `propertyNames` into other keywords.

    {"properties": {...}, "propertyNames": {"pattern": "^x"}}
    {"properties": {...}, "patternProperties": {"^(?!(?=[^]*(?:^x)))": false}}

A condition on names becomes look-aheads at the start of a pattern. Names that do not meet the
condition get the JSON schema `false`. The schema's other patterns must not match these names.
"""

from __future__ import annotations

import re

from engine.grammars.schemas.json_value import JsonObject, JsonValue
from engine.grammars.schemas.keywords import DESCRIBES, FORMATS, is_count

_ONLY = {"type", "enum", "const"}
_LENGTHS = {"type", "minLength", "maxLength"}
_SYNTAX = re.compile(r"[\\^$.*+?()\[\]{}|/]")


def with_names(schema: JsonObject, names: JsonObject) -> JsonObject | None:
    """Write the `propertyNames` of `schema` as other keywords, or return None if impossible."""
    rest = {name: value for name, value in schema.items() if name != "propertyNames"}
    names = {name: value for name, value in names.items() if name not in DESCRIBES}
    conditions = _conditions(names)
    if conditions is None:
        return None
    listed = _listed(names)
    if names.keys() <= _ONLY and listed is not None and "patternProperties" not in rest:
        return _with_listed(rest, listed)
    is_alone = rest.keys().isdisjoint({"properties", "patternProperties"})
    pattern = names.get("pattern")
    if is_alone and names.keys() <= {"type", "pattern"} and isinstance(pattern, str):
        return _with_pattern(rest, pattern)
    if is_alone and names.keys() <= _LENGTHS:
        return _with_pattern(rest, f"^[^]{_counted(names)}$")
    return _with_others(rest, "".join(conditions))


def _conditions(names: JsonObject) -> list[str] | None:
    if names.get("type", "string") != "string":
        return None
    found = list[str]()
    for keyword, value in names.items():
        match keyword, value:
            case "pattern", str():
                found.append(f"(?=[^]*(?:{value}))")
            case "not", dict() if inner := _conditions(value):
                found.append(f"(?!{''.join(inner)})")
            # Generators such as zod write both a format and a pattern with the same meaning.
            case "format", str() if "pattern" in names or value not in FORMATS:
                continue
            case "minLength" | "maxLength", int() | float() if is_count(value):
                continue
            case "enum" | "const" | "type", _:
                continue
            case _:
                return None
    if not names.keys().isdisjoint({"minLength", "maxLength"}):
        found.append(f"(?=[^]{_counted(names)}$)")
    if (listed := _listed(names)) is not None:
        found.append(f"(?=(?:{'|'.join(map(_literal, listed))})$)")
    return found


def _listed(names: JsonObject) -> list[str] | None:
    listed = names.get("enum", [names["const"]] if "const" in names else None)
    return [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else None


def _counted(names: JsonObject) -> str:
    least, most = names.get("minLength", 0), names.get("maxLength", "")
    return f"{{{_whole(least)},{_whole(most)}}}"


def _whole(count: JsonValue) -> JsonValue:
    return int(count) if isinstance(count, float) else count


def _literal(name: str) -> str:
    return _SYNTAX.sub(r"\\\g<0>", name)


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


def _with_others(schema: JsonObject, condition: str) -> JsonObject:
    known = schema.get("patternProperties", {})
    assert isinstance(known, dict)
    narrowed = {f"^{condition}(?=[^]*(?:{pattern}))": inner for pattern, inner in known.items()}
    return {**schema, "patternProperties": {**narrowed, f"^(?!{condition})": False}}
