"""The writing of texts as JSON strings."""

import json


def string(text: str) -> str:
    """Write `text` as a JSON string."""
    return f'"{inner(text)}"'


def inner(text: str) -> str:
    """Write `text`, a text or a part of a text, escaped as within a JSON string.

    A surrogate pair becomes its character. A half without the other half is replaced.
    """
    if any("\ud800" <= char <= "\udfff" for char in text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.dumps(text, ensure_ascii=False)[1:-1]
