"""The references (`$ref`) of a JSON schema to its own parts."""

from __future__ import annotations

from urllib.parse import unquote

from engine.grammars.schemas.json_value import JsonValue

MAX_REFERENCES = 20  # maximum number of references in a chain


def references_in(value: JsonValue) -> list[str]:
    """List the references anywhere in a schema."""
    found, waiting = list[str](), [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            reference = one.get("$ref")
            if isinstance(reference, str):
                found.append(reference)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return found


def segments_of(reference: str) -> list[str]:
    """Return the names on the way from the schema's root to the part that is referred to."""
    names = unquote(reference.partition("#")[2]).split("/")[1:]
    return [name.replace("~1", "/").replace("~0", "~") for name in names]
