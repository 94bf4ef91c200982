"""The JSON Schema keywords that llguidance enforces, and those that have no effect on values."""

from __future__ import annotations

from engine.grammars.schemas.json_value import JsonObject, JsonValue

FOLLOWED = {
    *("type", "const", "enum", "$ref", "allOf", "anyOf", "oneOf"),
    *("items", "additionalItems", "prefixItems", "minItems", "maxItems"),
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("minProperties", "maxProperties"),
    *("minLength", "maxLength", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
# The keywords that hold definitions or names for references, or that llguidance reads itself.
STRUCTURE = {"$defs", "definitions", "$id", "id", "$anchor", "$comment"}
NOT_FOLLOWED = {
    *("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies"),
    *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    *("unevaluatedProperties", "propertyNames", "$dynamicRef", "$recursiveRef"),
}
DESCRIBES = {"title", "description", "default", "examples", "$comment", "deprecated"}
DATA = {"const", "enum", "default", "examples"}
OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
COUNTS = {
    *("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
}
FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname"),
    *("ipv4", "ipv6", "uri", "uuid"),
}
# The keywords whose JSON schemas may also evaluate properties or items.
_APPLICATORS = {
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not"),
    *("if", "then", "else", "dependentSchemas"),
}


def is_count(value: object) -> bool:
    """Return whether a value of a keyword in `COUNTS` is a count: 3 or 3.0, but not True or -1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= 0 and value == value // 1


def binds(keyword: str, schema: JsonObject) -> bool:
    """Return whether an unsupported keyword changes the values that `schema` allows."""
    value = schema[keyword]
    match keyword:
        case "uniqueItems":
            return value is not False and not _at_most(schema.get("maxItems"), 1)
        case "propertyNames":
            return not _allows_all_strings(value)
        case "not":
            return value is not False
        case "if":
            ways = [schema.get(name, True) for name in ("then", "else")]
            return not all(map(allows_all, ways))
        case "then" | "else":
            return "if" in schema and not allows_all(value)
        case "contains":
            return schema.get("minContains") != 0 or "maxContains" in schema
        case "minContains" | "maxContains":
            return "contains" in schema and binds("contains", schema)
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            return not isinstance(value, dict) or not all(map(_requires_nothing, value.values()))
        case "unevaluatedProperties":
            return not allows_all(value) and "additionalProperties" not in schema
        case "unevaluatedItems":
            return not allows_all(value) and not isinstance(schema.get("items"), dict | bool)
    return True


def allows_all(schema: JsonValue) -> bool:
    """Return whether the JSON schema's keywords show that it allows every value."""
    if not isinstance(schema, dict):
        return schema is True
    known = FOLLOWED | NOT_FOLLOWED
    return not any(name in known and value is not None for name, value in schema.items())


def evaluates_elsewhere(schema: JsonObject) -> bool:
    """Return whether nested schemas (`allOf` ...) may define properties or items of their own."""
    return not _APPLICATORS.isdisjoint(schema)


def _allows_all_strings(schema: JsonValue) -> bool:
    if not isinstance(schema, dict) or allows_all(schema):
        return allows_all(schema)
    kinds = schema.get("type")
    may_be_text = "string" in kinds if isinstance(kinds, list) else kinds == "string"
    return may_be_text and allows_all({**schema, "type": None})


def _requires_nothing(value: JsonValue) -> bool:
    return value == [] or allows_all(value)


def _at_most(value: JsonValue, bound: int) -> bool:
    return isinstance(value, int | float) and value <= bound
