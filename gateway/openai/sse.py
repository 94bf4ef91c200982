"""Server-sent events as bytes.

Knows: SSE's framing, JSON. Does not know: what the events hold or when they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

_ENCODER = msgspec.json.Encoder()
_NO_TEXT = b':""'


def sse(value: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: " + _ENCODER.encode(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class SseFrame:
    """An encoded event in which only one text changes, split at that text."""

    before: bytes
    after: bytes

    @classmethod
    def around(cls, value: msgspec.Struct) -> SseFrame:
        """The frame of `value`, in which exactly one field must be an empty text."""
        # Inside a JSON string a quotation mark is escaped, so this cannot be part of a text.
        before, found, after = sse(value).partition(_NO_TEXT)
        if not found or _NO_TEXT in after:
            raise ValueError("not exactly one text is empty")
        return cls(before + b":", after)

    def with_text(self, text: str) -> bytes:
        """The event with `text`."""
        return self.before + _ENCODER.encode(text) + self.after
