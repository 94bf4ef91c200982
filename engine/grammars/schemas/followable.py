"""The conversion of a JSON schema to one that llguidance can follow, with bounded white space.

A small model that may write white space anywhere in JSON may write newlines for ever. Two tokens of
JSON therefore have at most `WHITESPACE` between them. A JSON schema's options (`x-guidance`) may
allow less.

A keyword without effect is left out. A keyword that llguidance cannot enforce is an error, whose
message names the keyword and its location. In the JSON schema of a tool that is not strict, such a
keyword is ignored. An unknown `format` is ignored, because in JSON Schema a `format` only describes
values.
"""

from __future__ import annotations

import json
from contextlib import suppress
from urllib.parse import quote, unquote

from engine.grammars.schemas.bounds import with_close_bounds
from engine.grammars.schemas.json_value import JsonObject, JsonValue
from engine.grammars.schemas.keywords import (
    COUNTS,
    DATA,
    DESCRIBES,
    FOLLOWED,
    FORMATS,
    NOT_FOLLOWED,
    OF_SCHEMAS,
    STRUCTURE,
    allows_all,
    binds,
    evaluates_elsewhere,
    is_count,
)
from engine.grammars.schemas.least_properties import with_least
from engine.grammars.schemas.lengths import CanBeHeld, can_be_compiled
from engine.grammars.schemas.names import with_names
from engine.grammars.schemas.references import MAX_REFERENCES, references_in, segments_of
from engine.grammars.schemas.texts import spelled, with_followable_texts
from engine.grammars.schemas.unions import exclude_each_other, tag_of, with_tag
from engine.grammars.syntax.expression import UnsoundGrammar
from engine.grammars.syntax.patterns.anchors import containing_text

# A line break and up to twenty spaces, as in indented JSON, or one space.
WHITESPACE = r"(\n[ ]{0,20}| )?"
# Llguidance reads these values as patterns.
_SEPARATORS = {"item_separator": ",", "key_separator": ":"}
MAX_COMMENT_CHARS = 80


def schema_of(text: str) -> JsonValue:
    """Parse the JSON text of a JSON schema. Raises UnsoundGrammar."""
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        raise UnsoundGrammar(f"it is not JSON: {error}") from error


def followable(
    schema: JsonValue, *, is_lenient: bool = False, can_be_held: CanBeHeld = can_be_compiled
) -> JsonObject:
    """Convert `schema` to a JSON schema that llguidance can follow.

    Raises UnsoundGrammar if llguidance can follow no equivalent schema. If `is_lenient`,
    unsupported keywords and patterns are left out, not refused. The error's message begins with the
    JSON schema's `$comment`.
    """
    try:
        found = _Walk(schema, can_be_held, is_lenient=is_lenient).whole()
        spacing = _spacing(schema)
    except UnsoundGrammar as error:
        comment = schema.get("$comment") if isinstance(schema, dict) else None
        whose = f"{comment[:MAX_COMMENT_CHARS]}: " if isinstance(comment, str) else ""
        raise UnsoundGrammar(f"{whose}{error}") from error
    return {**found, "x-guidance": spacing}


def _spacing(schema: JsonValue) -> JsonObject:
    options = schema.get("x-guidance") if isinstance(schema, dict) else None
    if (
        not isinstance(options, dict)
        or options.get("whitespace_flexible") is not False
        or options.get("whitespace_pattern") is not None
    ):
        return {"whitespace_pattern": WHITESPACE}
    separators = {name: options.get(name, mark) for name, mark in _SEPARATORS.items()}
    for name, mark in _SEPARATORS.items():
        if separators[name] not in (mark, f"{mark} "):
            raise UnsoundGrammar(f"{name} can be {mark!r}, with a blank behind it or without")
    return {"whitespace_flexible": False, **separators}


class _Walk:
    def __init__(self, schema: JsonValue, can_be_held: CanBeHeld, *, is_lenient: bool) -> None:
        self._root = schema
        self._can_be_held = can_be_held
        self._is_lenient = is_lenient
        references = references_in(schema)
        self._is_by_pointer = all(one == "#" or one.startswith("#/") for one in references)
        self._names_of_tagged: dict[tuple[JsonValue, str], str] = {}
        self._tagged_definitions: JsonObject = {}
        self._regexes: dict[str, str] = {}
        self._referred = {name for one in references for name in segments_of(one)}

    def whole(self) -> JsonObject:
        found = self._schema(self._root, "#")
        if found is True:
            return {}
        if found is False:
            raise UnsoundGrammar("the schema `false` allows nothing")
        assert isinstance(found, dict)
        if self._tagged_definitions:
            definitions = found.setdefault("$defs", {})
            assert isinstance(definitions, dict)
            definitions |= self._tagged_definitions
        return found

    def _schema(self, schema: JsonValue, at: str) -> JsonValue:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UnsoundGrammar(f"a JSON schema is an object or a boolean; at {at} it is neither")
        if at != "#" and allows_all(schema.get("not", False)):
            return False
        stated = {
            name: value for name, value in schema.items() if value is not None or name == "const"
        }
        said = self._with_names(self._with_unevaluated(stated))
        said = with_least(self._without_trivial(said, at))
        found: JsonObject = {}
        for name, value in said.items():
            self._add(found, name, value, f"{at}/{name}")
        found = with_close_bounds(found)
        pattern = said.get("pattern")
        return with_followable_texts(
            found,
            pattern if isinstance(pattern, str) else None,
            self._can_be_held,
            is_lenient=self._is_lenient,
        )

    def _add(self, found: JsonObject, name: str, value: JsonValue, at: str) -> None:
        match name:
            case "oneOf" if isinstance(value, list):
                self._add_one_of(found, value, at)
            case "pattern" if isinstance(value, str):
                pattern = self._pattern(value, at)
                if pattern is not None:
                    found[name] = pattern
            case "patternProperties" if isinstance(value, dict):
                found[name] = self._by_pattern(value, at)
            case "$ref" if self._is_lenient and self._target(value) is None:
                return
            case "$ref" if isinstance(value, str) and value.startswith("#/"):
                found[name] = "#" + quote(unquote(value[1:]))
            case "format" if isinstance(value, str) and value not in FORMATS:
                return
            case _ if name in COUNTS:
                if not (isinstance(value, int | float) and is_count(value)):
                    raise UnsoundGrammar(f"the value at {at} is not a count")
                found[name] = int(value)
            case _ if name in DATA:
                found[name] = value
            case _ if name in OF_SCHEMAS and isinstance(value, dict):
                found[name] = self._named(name, value, at)
            case _:
                found[name] = self._below(value, at)

    def _named(self, name: str, schemas: JsonObject, at: str) -> JsonObject:
        is_definitions = name in STRUCTURE and self._is_by_pointer
        return {
            key: self._schema(inner, f"{at}/{key}")
            for key, inner in schemas.items()
            if not is_definitions or key in self._referred
        }

    def _below(self, value: JsonValue, at: str) -> JsonValue:
        if isinstance(value, list):
            return [self._below(inner, f"{at}/{n}") for n, inner in enumerate(value)]
        return self._schema(value, at) if isinstance(value, dict) else value

    def _without_trivial(self, schema: JsonObject, at: str) -> JsonObject:
        said: JsonObject = {}
        for name, value in schema.items():
            if name in NOT_FOLLOWED:
                if not self._is_lenient and binds(name, schema):
                    raise UnsoundGrammar(f"the keyword `{name}` at {at} is not supported")
            elif name == "$id" and not self._is_base(schema, at):
                continue
            elif name in FOLLOWED or name in STRUCTURE or name in self._referred:
                said[name] = value
        return said

    def _is_base(self, schema: JsonObject, at: str) -> bool:
        return not self._is_by_pointer or (at != "#" and bool(references_in(schema)))

    def _with_unevaluated(self, schema: JsonObject) -> JsonObject:
        """Replace `unevaluated...` keywords by equivalent simpler keywords where possible."""
        for name, plain in (
            ("unevaluatedProperties", "additionalProperties"),
            ("unevaluatedItems", "items"),
        ):
            if name in schema and plain not in schema and not evaluates_elsewhere(schema):
                rest = {key: value for key, value in schema.items() if key != name}
                schema = {**rest, plain: schema[name]}
        return schema

    def _with_names(self, schema: JsonObject) -> JsonObject:
        names = self._resolved(schema.get("propertyNames"))
        if not isinstance(names, dict) or not binds("propertyNames", schema):
            return schema
        found = with_names(schema, names)
        return found if found is not None and self._can_read_names(found) else schema

    def _can_read_names(self, schema: JsonObject) -> bool:
        patterns = schema.get("patternProperties", {})
        assert isinstance(patterns, dict)
        with suppress(UnsoundGrammar):
            for pattern in patterns:
                self._regex(pattern)
            return True
        return False

    def _add_one_of(self, found: JsonObject, alternatives: list[JsonValue], at: str) -> None:
        is_exclusive = self._is_lenient or exclude_each_other(alternatives, self._resolved)
        tag = None if is_exclusive else tag_of(alternatives, self._resolved)
        if tag is not None:
            alternatives = [self._tagged(one, tag) for one in alternatives]
        is_free = "oneOf" not in self._referred and "anyOf" not in found
        name = "anyOf" if is_free and (is_exclusive or tag is not None) else "oneOf"
        found[name] = self._below(alternatives, at)

    def _tagged(self, schema: JsonValue, tag: str) -> JsonValue:
        if not isinstance(schema, dict) or "$ref" not in schema:
            return with_tag(schema, tag)
        known = (schema["$ref"], tag)
        if known not in self._names_of_tagged:
            self._names_of_tagged[known] = name = f"tagged {len(self._names_of_tagged)}"
            self._tagged_definitions[name] = self._schema(
                with_tag(self._resolved(schema), tag), str(schema["$ref"])
            )
        return {"$ref": f"#/$defs/{quote(self._names_of_tagged[known])}"}

    def _by_pattern(self, schemas: JsonObject, at: str) -> JsonObject:
        found: JsonObject = {}
        for key, inner in schemas.items():
            pattern = self._pattern(key, at)
            if pattern is not None:
                found[pattern] = self._schema(inner, f"{at}/{key}")
        return found

    def _pattern(self, pattern: str, at: str) -> str | None:
        try:
            return self._regex(pattern)
        except UnsoundGrammar as error:
            if self._is_lenient:
                return None
            raise UnsoundGrammar(f"the pattern at {at}: {error}") from error

    def _regex(self, pattern: str) -> str:
        if pattern not in self._regexes:
            self._regexes[pattern] = spelled(containing_text(pattern))
        return self._regexes[pattern]

    def _resolved(self, schema: JsonValue) -> JsonValue:
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            if not schema.keys() <= {"$ref", *DESCRIBES}:
                break
            target = self._target(schema["$ref"])
            if target is None:
                break
            schema = target
        return schema

    def _target(self, reference: JsonValue) -> JsonValue:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found = self._root
        for name in segments_of(reference):
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                return None
        return found
