"""Finds where a JSON value ends in a text that comes piece by piece, and whether it is JSON.

An object, an array or a string: these show their end themselves. Linear, and nothing is kept but
the open brackets and the number that is being read.

Models write newlines into strings as they are, which JSON does not allow. Those are passed on
escaped; everything else as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}')
_BEGUN_ESCAPE = re.compile(r"u[0-9a-fA-F]{0,3}")
_ATOM_PART = re.compile(r"[-+.0-9a-zA-Z]*")
_ATOM = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_MAX_ATOM = 400  # characters; no double needs as many
_CONTROLS = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class JsonScanner:
    """Reads one value. After `is_whole` or `is_broken` there is nothing more to feed."""

    def __init__(self) -> None:
        self.is_whole = False
        self.is_broken = False
        self._open: list[str] = []
        self._expects: _State = JsonScanner._root
        self._atom = ""
        self._escape = ""
        self._is_key = False
        self._controls: list[int] = []

    @classmethod
    def after_key(cls) -> JsonScanner:
        """A scanner of the rest of an object, of which a key was read."""
        scanner = cls()
        scanner._open, scanner._expects = ["{"], cls._colon
        return scanner

    @classmethod
    def after_value(cls) -> JsonScanner:
        """A scanner of the rest of an object, of which a key and its value were read."""
        scanner = cls()
        scanner._open, scanner._expects = ["{"], cls._comma
        return scanner

    def feed(self, text: str, at: int = 0) -> tuple[str, int]:
        """What belongs to the value from `at` on, as it is passed on, and where that ends."""
        begin = at
        while at < len(text) and not (self.is_whole or self.is_broken):
            at = self._expects(self, text, at)
        return self._repaired(text, begin, at), at

    def _repaired(self, text: str, begin: int, end: int) -> str:
        if not self._controls:
            return text[begin:end]
        parts = []
        for place in self._controls:
            char = text[place]
            parts += [text[begin:place], _CONTROLS.get(char, f"\\u{ord(char):04x}")]
            begin = place + 1
        self._controls = []
        return "".join([*parts, text[begin:end]])

    def _root(self, text: str, at: int) -> int:
        if text[at] in '{["':
            return self._value(text, at)
        return self._fail(at)

    def _value(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        char = text[at : at + 1]
        if char == '"':
            self._is_key, self._expects = False, JsonScanner._string
        elif char == "{":
            self._open.append(char)
            self._expects = JsonScanner._first_key
        elif char == "[":
            self._open.append(char)
            self._expects = JsonScanner._first_item
        elif char:
            self._atom, self._expects = "", JsonScanner._atom_part
            return at
        return at + len(char)

    def _first_item(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        return self._close(at) if text[at : at + 1] == "]" else self._value(text, at)

    def _first_key(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        return self._close(at) if text[at : at + 1] == "}" else self._key(text, at)

    def _key(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        char = text[at : at + 1]
        if char not in ("", '"'):
            return self._fail(at)
        if char:
            self._is_key, self._expects = True, JsonScanner._string
        return at + len(char)

    def _colon(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        if text[at : at + 1] not in ("", ":"):
            return self._fail(at)
        if at < len(text):
            self._expects = JsonScanner._value
        return min(at + 1, len(text))

    def _comma(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        char = text[at : at + 1]
        if char == ",":
            is_object = self._open[-1] == "{"
            self._expects = JsonScanner._key if is_object else JsonScanner._value
        elif char and char == ("}" if self._open[-1] == "{" else "]"):
            return self._close(at)
        elif char:
            return self._fail(at)
        return at + len(char)

    def _string(self, text: str, at: int) -> int:
        at = _end(_PLAIN, text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self._string_ended()
        elif text[at] == "\\":
            self._escape, self._expects = "", JsonScanner._in_escape
        else:
            self._controls.append(at)
        return at + 1

    def _string_ended(self) -> None:
        if self._is_key:
            self._expects = JsonScanner._colon
        else:
            self._value_ended()

    def _in_escape(self, text: str, at: int) -> int:
        self._escape += text[at]
        if _ESCAPE.fullmatch(self._escape):
            self._expects = JsonScanner._string
        elif not _BEGUN_ESCAPE.fullmatch(self._escape):
            return self._fail(at)
        return at + 1

    def _atom_part(self, text: str, at: int) -> int:
        end = _end(_ATOM_PART, text, at)
        self._atom += text[at : min(end, at + _MAX_ATOM)]
        if len(self._atom) >= _MAX_ATOM or (end < len(text) and not _ATOM.fullmatch(self._atom)):
            return self._fail(end)
        if end < len(text):
            self._value_ended()
        return end

    def _close(self, at: int) -> int:
        self._open.pop()
        self._value_ended()
        return at + 1

    def _value_ended(self) -> None:
        self._expects = JsonScanner._comma
        self.is_whole = not self._open

    def _fail(self, at: int) -> int:
        self.is_broken = True
        return at


_State = Callable[[JsonScanner, str, int], int]


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where the run of `pattern`, which may be empty, ends."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _after_space(text: str, at: int) -> int:
    return _end(_SPACE, text, at)
