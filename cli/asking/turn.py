"""A streamed answer: its text, and the stream's usage with the cached tokens.

This module does no I/O: the caller supplies lines and times.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from cli.errors import ServerRefused

_DATA = b"data:"


@dataclass(slots=True)
class Turn:
    """The received part of an event stream. All times are in seconds on the caller's clock."""

    sent_at: float
    text: str = ""
    first_at: float | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    def hear(self, line: bytes, at: float) -> str:
        """Read a line of the stream, and return the part of the answer in it.

        Raises ServerRefused for a line that reports an error, and msgspec.DecodeError if the line
        is not JSON.
        """
        data = line.removeprefix(_DATA).strip()
        if not line.startswith(_DATA) or data == b"[DONE]":
            return ""
        event = msgspec.json.decode(data)
        if error := event.get("error"):
            raise ServerRefused(str(error.get("message") or "the answer failed"), status=200)
        self.usage = event.get("usage") or self.usage
        said = "".join((one.get("delta") or {}).get("content") or "" for one in event["choices"])
        if said and self.first_at is None:
            self.first_at = at
        self.text += said
        return said

    def numbers(self) -> str:
        """Describe the cached tokens and the time to first token in one line."""
        prompt = self.usage.get("prompt_tokens", 0)
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        first = (
            "no token came"
            if self.first_at is None
            else f"first token after {1000 * (self.first_at - self.sent_at):.0f} ms"
        )
        return f"[cached {cached} of {prompt} prompt tokens, {first}]"
