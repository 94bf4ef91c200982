"""The tools that are not functions: tools that take free text, and hosted tools.

A model calls functions, whose arguments are a JSON object. A tool that takes text is shown to the
model as a function of one argument, `input`. The client receives the text that the model writes
there. A tool that the server would have to run is ignored, and the answer reports this.

Elsewhere: how the tool is shown (`free_formats.py`).
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.prompts.chats.forms import Tool

INPUT = "input"
_STARTS = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAX_START = 64  # maximum characters before the text in arguments like `{"input": "the text"}`
# Matches the part of a JSON string that later characters cannot change. The match ends neither
# within an escape nor within a surrogate pair. Models also write escapes that JSON does not have,
# and single halves of pairs.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ALONE = r"(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])"
_HEX = r"\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
_NO_HEX = r"\\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])"
_TOLD = re.compile(
    rf'(?:[^"\\]|\\[^u]|{_HEX}|{_HIGH}{_LOW}|{_HIGH}{_ALONE}|{_LOW}|{_NO_HEX})*', re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class PassedOver(Struct, frozen=True):
    """A part of a request that has no effect here, as the answer reports it."""

    param: str
    type: str
    reason: str


def free_arguments(text: str) -> dict[str, Any]:
    """Write the arguments of a call whose input was `text`."""
    return {INPUT: text}


def added_text(tools: Sequence[Tool]) -> str:
    """Write the message that tells the model of tools added within a conversation."""
    if not tools:
        return "No tool was added."
    described = [msgspec.json.encode(tool).decode() for tool in tools]
    return "\n".join(("These tools are available from here on:", *described))


def free_input(arguments: str) -> str:
    """Read the text in the arguments of a whole call."""
    reader = FreeInput()
    return reader.feed(arguments) + reader.end()


class FreeInput:
    """A reader of a free-text call's JSON arguments, piece by piece in linear time."""

    def __init__(self) -> None:
        self._held = ""  # received characters that are not yet returned
        self._other: list[str] = []  # pieces of arguments that are not `{"input": ...}`
        self._state: Literal["start", "inside", "other", "over"] = "start"

    def feed(self, arguments: str) -> str:
        """Add more `arguments`; return the text that has become certain."""
        if self._state == "other":
            self._other.append(arguments)
            return ""
        self._held += arguments
        if self._state == "start":
            self._begin()
        return self._told() if self._state == "inside" else ""

    def end(self) -> str:
        """End the arguments; return an object of another form unchanged, or else ""."""
        if self._state in ("start", "other"):
            return _whole("".join((self._held, *self._other)))
        return ""

    def _begin(self) -> None:
        found = _STARTS.match(self._held)
        if found is not None:
            self._state, self._held = "inside", self._held[found.end() :]
        elif len(self._held) > _MAX_START:
            self._state = "other"

    def _told(self) -> str:
        found = _TOLD.match(self._held)
        assert found is not None  # the pattern also matches the empty text
        told, self._held = found.group(), self._held[found.end() :]
        if self._held.startswith('"'):
            self._state, self._held = "over", ""
        return _unescaped(told)


def _unescaped(spelled: str) -> str:
    return _replaced(_ESCAPE.sub(_character, spelled))


def _character(escape: re.Match[str]) -> str:
    code, letter = escape.groups()
    return chr(int(code, 16)) if code else _ESCAPED.get(letter, escape.group())


def _whole(arguments: str) -> str:
    """Return the only string in the arguments' object, or else the arguments as they are."""
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    texts = [*value.values()] if isinstance(value, dict) else [value]
    only = texts[0] if len(texts) == 1 else None
    return _replaced(only) if isinstance(only, str) else arguments


def _replaced(text: str) -> str:
    """Replace halves of surrogate pairs, which UTF-8 cannot express."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
