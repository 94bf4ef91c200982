"""The conversion of argument values that are not written as JSON into JSON.

The tool's schema gives the type. A value becomes a string if its type is unknown, or if its text
does not fit the type. The client then gets the text that the model wrote.
"""

from collections.abc import Set

import msgspec

from gateway.turn_formats.json_scanner import JsonScanner
from gateway.turn_formats.shapes.python_literal import as_json
from gateway.turn_formats.shapes.schemas import ANY_TYPE, type_names
from gateway.turn_formats.shapes.strings import string

_UNLIKE_TEXT, _TEXT = {"null", "array", "object"}, {"string"}
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def typed(text: str, types: Set[str]) -> str:
    """Convert an unquoted value to JSON of one of the `types`, or to a string.

    If a string is allowed too, a number or a word must be spelled as in JSON, and the schema must
    name its type: 007 is text, and so is 7 if the schema allows values of all types.
    """
    bare = text.strip()
    written = _as_json(bare)
    is_spelled = written in (bare, bare.lower()) and types != ANY_TYPE
    allowed = types if "string" not in types or is_spelled else types & _UNLIKE_TEXT
    return written if _types(written) & allowed - _TEXT else string(text)


def is_text(types: Set[str]) -> bool:
    """Return whether a value of `types` is always a string."""
    return types <= {"string"}


def _as_json(text: str) -> str:
    return _nested(text) or _WORDS.get(text.lower()) or as_json(text) or _nested(_unescaped(text))


def _nested(text: str) -> str:
    """Return a list or an object in `text` as JSON, or ""."""
    if text[:1] not in ("{", "["):
        return ""
    shown, end = (scanner := JsonScanner()).feed(text)
    return shown if scanner.is_whole and end == len(text) else ""


def _unescaped(text: str) -> str:
    """Return the text of a JSON string, which some models write in place of JSON, or ""."""
    if '\\"' not in text:
        return ""
    try:
        return msgspec.json.decode(f'"{text}"', type=str)
    except msgspec.DecodeError:
        return ""


def _types(text: str) -> frozenset[str]:
    try:
        return frozenset(type_names(msgspec.json.decode(text)))
    except (msgspec.DecodeError, RecursionError):
        return frozenset()
