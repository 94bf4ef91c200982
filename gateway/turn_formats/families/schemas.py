"""What a tool's schema says of its parameters, also behind `$ref`, `allOf` and `anyOf`.

Knows: JSON schemas. Does not know: how values are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from gateway.turn_formats.turn_format import Schema, ToolSpec

_MAX_PARTS = 64  # of one schema that are looked at: it may refer to itself, and more than once
_UNION = ("anyOf", "oneOf")
_OF_TYPE = {  # keywords that only say something of one type
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
}


def properties_of(tool: ToolSpec) -> dict[str, Schema] | None:
    """The parameters that the tool's schema names; None where it names none, and takes any."""
    if tool.parameters is None:
        return {}
    properties = resolved(tool.parameters, tool.parameters).get("properties")
    return properties if isinstance(properties, dict) else None


def required_of(tool: ToolSpec) -> frozenset[str]:
    """The parameters that must be there."""
    return names(resolved(tool.parameters or {}, tool.parameters).get("required"))


def parameter(tool: ToolSpec, name: str) -> Schema | None:
    """The schema of one of the tool's parameters; None if it says nothing."""
    whole = resolved(tool.parameters or {}, tool.parameters)
    schema = (properties_of(tool) or {}).get(name, whole.get("additionalProperties"))
    return schema if isinstance(schema, dict) else None


def resolved(schema: Schema, root: Schema | None) -> Schema:
    """`schema` with what its `$ref` and all of its `allOf` say, as one schema."""
    return _Resolver(root).resolved(schema)


def alternatives(schema: Schema, root: Schema | None) -> Sequence[Schema]:
    """The schemas of one of which a value must be."""
    return list(_Resolver(root).alternatives(schema))


def types_of(schema: Schema | None, root: Schema | None = None) -> frozenset[str]:
    """The JSON types that a schema allows; empty where it does not say."""
    found = [_types(one) for one in alternatives(schema or {}, root)]
    return frozenset[str]().union(*found)


def words_of(schema: Schema) -> Sequence[Any] | None:
    """The only values that a schema allows; None where these are not listed."""
    if "const" in schema:
        return [schema["const"]]
    words = schema.get("enum")
    return words if isinstance(words, list) and words else None


def type_names(value: Any) -> tuple[str, ...]:
    """The names that JSON schemas have for the type of `value`."""
    match value:
        case bool():
            return ("boolean",)
        case int():
            return ("number", "integer")
        case float():
            return ("number", "integer") if value.is_integer() else ("number",)
        case str():
            return ("string",)
        case list():
            return ("array",)
        case None:
            return ("null",)
    return ("object",)


def _types(schema: Schema) -> frozenset[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return names(kind)
    words = words_of(schema)
    if words is not None:
        return frozenset(name for word in words for name in type_names(word))
    return frozenset(name for name, keys in _OF_TYPE.items() if not schema.keys().isdisjoint(keys))


def names(value: object) -> frozenset[str]:
    """The texts in a list, of names or of types; of anything else none."""
    named = value if isinstance(value, list) else []
    return frozenset(one for one in named if isinstance(one, str))


class _Resolver:
    """Looks at so many parts of a schema, and passes over the others."""

    def __init__(self, root: Schema | None) -> None:
        self._root = root or {}
        self._left = _MAX_PARTS

    def resolved(self, schema: Schema) -> Schema:
        whole = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
        for part in self._parts(schema):
            _add(whole, self.resolved(part))
        return whole

    def alternatives(self, schema: Schema) -> Iterator[Schema]:
        whole = self.resolved(schema)
        union = next((whole[name] for name in _UNION if isinstance(whole.get(name), list)), None)
        common = {name: value for name, value in whole.items() if name not in _UNION}
        if union is None:
            yield common
        for one in self._dicts(union or ()):
            yield from self.alternatives({**common, **one})

    def _parts(self, schema: Schema) -> Iterator[Schema]:
        every = schema.get("allOf")
        target = _target(schema.get("$ref"), self._root)
        return self._dicts([target, *(every if isinstance(every, list) else ())])

    def _dicts(self, parts: Sequence[Any]) -> Iterator[Schema]:
        for part in parts:
            if isinstance(part, dict) and self._left:
                self._left -= 1
                yield part


def _add(whole: dict[str, Any], part: Schema) -> None:
    for name, value in part.items():
        known = whole.get(name)
        if name == "properties" and isinstance(known, dict) and isinstance(value, dict):
            whole[name] = {**value, **known}
        elif name == "required":
            whole[name] = sorted(names(known) | names(value))
        else:
            whole.setdefault(name, value)


def _target(reference: object, root: Schema) -> Any:
    """What a reference within the schema names."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in unquote(reference).removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal():
            found = found[int(key)] if int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found
