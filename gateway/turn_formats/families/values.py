"""Values of arguments that a model does not write as JSON, as JSON.

The tool's schema says the type. A text whose type is not known stays a string, and so does one
that is not of the type it should have: the client sees then what the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.turn_formats.turn_format import Schema, ToolSpec

_MAX_REFERENCES = 8  # that a type is looked for behind
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def string(text: str) -> str:
    """`text` as a JSON string."""
    return f'"{inner(text)}"'


def inner(text: str) -> str:
    """`text` as it stands within a JSON string. A part of a text gives a part of the string."""
    is_unicode = not any("\ud800" <= char <= "\udfff" for char in text)
    return json.dumps(text, ensure_ascii=not is_unicode)[1:-1]


def typed(text: str, schema: Schema | None, root: Schema | None = None) -> str:
    """What a model wrote without quotes, as JSON of the type that `schema` says.

    `root` is the schema in which references are looked up.
    """
    types = types_of(schema, root)
    plain = text.strip()
    plain = _PYTHON.get(plain, plain)
    if not types or (types >= {"string"} and not (plain == "null" and "null" in types)):
        return string(text)
    return plain if _type_of(plain) & types else string(text)


def is_text(schema: Schema | None, root: Schema | None = None) -> bool:
    """Whether a value of `schema` is a string, whatever is written."""
    return types_of(schema, root) in ({"string"}, frozenset())


def parameter(tool: ToolSpec, name: str) -> Schema | None:
    """The schema of one of the tool's parameters; None if it says nothing."""
    properties = (tool.parameters or {}).get("properties")
    schema = properties.get(name) if isinstance(properties, dict) else None
    return schema if isinstance(schema, dict) else None


def types_of(schema: Schema | None, root: Schema | None = None) -> frozenset[str]:
    """The JSON types that a schema allows; empty where it does not say."""
    return frozenset(_types(schema or {}, root or {}, _MAX_REFERENCES))


def _types(schema: Schema, root: Schema, references: int) -> Iterator[str]:
    kind = schema.get("type")
    yield from [kind] if isinstance(kind, str) else kind or ()
    for value in [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]:
        if kind is None:
            yield _JSON_TYPES[type(value)]
    if references:
        target = _target(schema.get("$ref"), root)
        for one in [*schema.get("anyOf", ()), *schema.get("oneOf", ()), target]:
            yield from _types(one, root, references - 1) if isinstance(one, dict) else ()


def _target(reference: object, root: Schema) -> Any:
    """What a reference within the schema names."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _type_of(text: str) -> frozenset[str]:
    """The JSON types of which `text` is; none where it is no JSON."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return frozenset()
    if isinstance(value, float) and value.is_integer():
        return frozenset({"number", "integer"})
    kind = _JSON_TYPES[type(value)]
    return frozenset({"number", "integer"} if kind == "integer" else {kind})
