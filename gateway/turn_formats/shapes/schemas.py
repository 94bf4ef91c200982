"""The schemas of a tool's parameters, resolved through `$ref`, `allOf` and `anyOf`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any
from urllib.parse import unquote

from gateway.turn_formats.turn_format import Schema, ToolSpec

_MAX_PARTS = 64  # maximum number of parts read of a JSON schema, which may refer to itself
_MAX_KEYS = 64  # number of keys of a schema that count as one more part
_MAX_TYPES = 64
_PARTS = ("$ref", "allOf")
_UNION = ("anyOf", "oneOf")
ANY_TYPE = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_OF_TEXT = frozenset(("format", "maxLength", "minLength", "pattern"))  # keywords for texts only
_OF_TYPE = {  # keywords that imply a type
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
}


def properties_of(tool: ToolSpec) -> dict[str, Schema] | None:
    """Return the schemas of a tool's named parameters; None if any parameters are allowed."""
    if tool.parameters is None:
        return {}
    properties = resolved(tool.parameters, tool.parameters).get("properties")
    return properties if isinstance(properties, dict) else None


def required_of(tool: ToolSpec) -> frozenset[str]:
    """Return the names of a tool's required parameters."""
    return names(resolved(tool.parameters or {}, tool.parameters).get("required"))


class ParameterTypes:
    """The JSON types of one tool's parameters, resolved on first use and remembered."""

    def __init__(self, tool: ToolSpec) -> None:
        self._root = tool.parameters or {}
        # JSON types by parameter name; None: the name of all unnamed parameters
        self._types: dict[str | None, frozenset[str]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def types(self, name: str) -> frozenset[str]:
        """Return the JSON types of a parameter; empty if the schema does not name the parameter.

        A named parameter without a type, as of Python's `Any`, may be of any type.
        """
        known = name if name in self else None
        if known not in self._types:
            other = self._whole.get("additionalProperties")
            schema = other if known is None else self._named[known]
            said = schema if isinstance(schema, dict) else None
            types = types_of(said, self._root)
            is_any = known is not None and not types and _OF_TEXT.isdisjoint(said or ())
            self._types[known] = ANY_TYPE if is_any else types
        return self._types[known]

    @cached_property
    def _whole(self) -> Schema:
        return resolved(self._root, self._root)

    @cached_property
    def _named(self) -> Schema:
        named = self._whole.get("properties")
        return named if isinstance(named, dict) else {}


def resolved(schema: Schema, root: Schema | None) -> Schema:
    """Merge `schema` with the schemas of its `$ref` and `allOf` into one schema."""
    return _Resolver(root).resolved(schema)


def alternatives(schema: Schema, root: Schema | None) -> Sequence[Schema]:
    """List the alternatives of a schema (`anyOf`, `oneOf`). A value must follow one of them."""
    return list(_Resolver(root).alternatives(schema))


def types_of(schema: Schema | None, root: Schema | None = None) -> frozenset[str]:
    """Return the JSON types that a schema allows; empty if the schema names no type."""
    found = _Resolver(root, _types_alone).alternatives(schema or {})
    return frozenset[str]().union(*(_types(one) for one in found))


def words_of(schema: Schema) -> Sequence[Any] | None:
    """List the values of a schema's `const` or `enum`, or return None."""
    if "const" in schema:
        return [schema["const"]]
    words = schema.get("enum")
    return words if isinstance(words, list) and words else None


def type_names(value: Any) -> tuple[str, ...]:
    """Return JSON Schema's names of the types of `value`."""
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
    """Return the strings in a list, or an empty set for any other value."""
    named = value if isinstance(value, list) else []
    return frozenset(one for one in named if isinstance(one, str))


def _types_alone(schema: Schema) -> Schema:
    said = {name: schema[name] for name in ("const", *_PARTS, *_UNION) if name in schema}
    said |= {name: True for name in chain(*_OF_TYPE.values()) if name in schema}
    kind, words = schema.get("type"), schema.get("enum")
    if kind is not None:
        said["type"] = kind[:_MAX_TYPES] if isinstance(kind, list) else kind
    if isinstance(words, list):
        said["enum"] = list({type_names(word): word for word in words}.values())
    return said


class _Resolver:
    """A resolver of schemas that reads at most `_MAX_PARTS` parts.

    `view` selects the keywords of each part to read.
    """

    def __init__(
        self, root: Schema | None, view: Callable[[Schema], Schema] = lambda schema: schema
    ) -> None:
        self._root = root or {}
        self._left = _MAX_PARTS
        self._view = view
        self._views: dict[int, tuple[Schema, Schema]] = {}  # schema and view, by schema's `id`
        self._targets: dict[str, Any] = {}

    def resolved(self, schema: Schema) -> Schema:
        parts: dict[int, Schema] = {}
        self._collect(schema, parts)
        return _merged([self._viewed(part) for part in parts.values()])

    def alternatives(self, schema: Schema) -> Iterator[Schema]:
        whole = self.resolved(schema)
        union = next((whole[name] for name in _UNION if isinstance(whole.get(name), list)), None)
        common = {name: value for name, value in whole.items() if name not in _UNION}
        if union is None:
            yield common
        for one in self._dicts(union or (), len(common)):
            yield from self.alternatives({**common, **self._viewed(one)})

    def _collect(self, schema: Schema, parts: dict[int, Schema]) -> None:
        if id(schema) in parts:
            return
        parts[id(schema)] = schema
        every = schema.get("allOf")
        target = self._target(schema.get("$ref"))
        held = every if isinstance(every, list) else ()
        for part in self._dicts(chain([] if target is None else [target], held)):
            self._collect(part, parts)

    def _viewed(self, schema: Schema) -> Schema:
        if id(schema) not in self._views:
            self._views[id(schema)] = schema, self._view(schema)
        return self._views[id(schema)][1]

    def _target(self, reference: object) -> Any:
        if not isinstance(reference, str):
            return None
        if reference not in self._targets:
            self._targets[reference] = _target(reference, self._root)
        return self._targets[reference]

    def _dicts(self, parts: Iterable[Any], keys: int = 0) -> Iterator[Schema]:
        """Yield the schemas among `parts` up to the limit, which also counts keys."""
        for part in parts:
            if self._left <= 0:
                return
            is_schema = isinstance(part, dict)
            self._left -= 1 + (keys + len(part) if is_schema else 0) // _MAX_KEYS
            if is_schema:
                yield part


def _merged(parts: Sequence[Schema]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for name, value in chain.from_iterable(part.items() for part in parts):
        if name not in _PARTS:
            whole.setdefault(name, value)
    named = [one for part in parts if isinstance(one := part.get("properties"), dict)]
    if len(named) > 1 and isinstance(whole["properties"], dict):
        whole["properties"] = dict(chain.from_iterable(one.items() for one in reversed(named)))
    if any("required" in part for part in parts[1:]):
        needed = frozenset[str]().union(*(names(part.get("required")) for part in parts))
        whole["required"] = sorted(needed)
    return whole


def _target(reference: object, root: Schema) -> Any:
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
