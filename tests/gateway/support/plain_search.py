"""A plain search for an answer's end, as the reference of the stop-string scanner."""

from __future__ import annotations


def search(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """Extend the text by one character at a time until a stop string ends it."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None
