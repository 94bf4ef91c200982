"""The end of an answer, found by a plain search, as the reference of the scanner."""

from __future__ import annotations


def search(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """Extend the text by one character at a time until a stop string ends it."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None
