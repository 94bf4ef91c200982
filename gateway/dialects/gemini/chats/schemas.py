"""The conversion of Gemini's schemas to JSON Schema.

Gemini uses a form of OpenAPI's schemas. Types are in capitals. `nullable` adds the type null.
Counts may be strings of digits. `propertyOrdering` gives the order of properties. Keywords may be
in snake case. An answer's objects have only the properties that their schema names.
"""

from typing import Any

from gateway.errors import BadRequest

_KEPT = ("title", "description", "default", "pattern", "required", "minimum", "maximum")
_SCHEMAS = {"items": "items", "additionalProperties": "additionalProperties", "not": "not"}
_LISTS = {"anyOf": "anyOf", "oneOf": "oneOf", "allOf": "allOf", "prefixItems": "prefixItems"}
_NAMED = {"properties": "properties", "defs": "$defs", "$defs": "$defs"}
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_FORMATS = {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri"}
_FORMATS |= {"uuid"}
_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}
_CAMEL = {
    "any_of": "anyOf",
    "one_of": "oneOf",
    "all_of": "allOf",
    "prefix_items": "prefixItems",
    "additional_properties": "additionalProperties",
    "property_ordering": "propertyOrdering",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
}


def json_schema(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert the schema in the field `where` to JSON Schema; raise BadRequest if it is wrong."""
    given = {_CAMEL.get(name, name): value for name, value in schema.items() if value is not None}
    made: dict[str, Any] = {name: given[name] for name in _KEPT if name in given}
    if (kind := _type(given.get("type"), f"{where}.type")) is not None:
        made["type"] = kind
    made |= {name: _count(given[name], f"{where}.{name}") for name in _COUNTS if name in given}
    if given.get("format") in _FORMATS:
        made["format"] = given["format"]
    if "enum" in given:
        made["enum"] = _listed(given["enum"], f"{where}.enum")
    for name, ours in {"ref": "$ref", "$ref": "$ref"}.items():
        if name in given:
            made[ours] = _reference(given[name], f"{where}.{name}")
    for table, convert in ((_SCHEMAS, _schema), (_LISTS, _schemas), (_NAMED, _named)):
        for name, ours in table.items():
            if name in given:
                made[ours] = convert(given[name], f"{where}.{name}")
    if "properties" in made:
        ordering = _listed(given.get("propertyOrdering", []), f"{where}.propertyOrdering")
        made["properties"] = _ordered(made["properties"], ordering)
    return _nullable(made) if given.get("nullable") is True else made


def closed(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    """Return a converted schema whose objects have only the properties that it names.

    Gemini's own answers keep to these. An object with `additionalProperties`, or of several
    schemas, stays open.
    """
    if isinstance(schema, bool):
        return schema
    made = dict(schema)
    for name in {"properties", "$defs"} & made.keys():
        made[name] = {key: closed(one) for key, one in made[name].items()}
    for name in {"anyOf", "oneOf", "prefixItems"} & made.keys():
        made[name] = [closed(one) for one in made[name]]
    if "items" in made:
        made["items"] = closed(made["items"])
    if made.get("properties") and not made.keys() & {"anyOf", "oneOf", "allOf"}:
        made.setdefault("additionalProperties", False)
    return made


def _type(given: object, where: str) -> str | list[str] | None:
    if isinstance(given, list):
        kinds = [kind for one in given if isinstance(kind := _type(one, where), str)]
        return kinds or None
    if given is None or given == "TYPE_UNSPECIFIED":
        return None
    kind = given.lower() if isinstance(given, str) else ""
    if kind not in _TYPES:
        raise BadRequest("there is no such type", param=where)
    return kind


def _count(given: object, where: str) -> int:
    """Read a count, which Google's JSON may write as a string of digits."""
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise BadRequest("this is not a count", param=where)


def _listed(given: object, where: str) -> list[Any]:
    if isinstance(given, list):
        return given
    raise BadRequest("this is not a list", param=where)


def _reference(given: object, where: str) -> str:
    if not isinstance(given, str):
        raise BadRequest("this is not a reference", param=where)
    return given.replace("#/defs/", "#/$defs/", 1)


def _schema(given: object, where: str) -> dict[str, Any] | bool:
    if isinstance(given, bool):
        return given
    if not isinstance(given, dict):
        raise BadRequest("this is not a schema", param=where)
    return json_schema(given, where)


def _schemas(given: object, where: str) -> list[Any]:
    found = _listed(given, where)
    return [_schema(one, f"{where}[{place}]") for place, one in enumerate(found)]


def _named(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadRequest("these are not schemas by name", param=where)
    return {name: _schema(one, f"{where}.{name}") for name, one in given.items()}


def _ordered(properties: dict[str, Any], ordering: list[Any]) -> dict[str, Any]:
    known = [name for name in ordering if isinstance(name, str) and name in properties]
    return {name: properties[name] for name in dict.fromkeys((*known, *properties))}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}
