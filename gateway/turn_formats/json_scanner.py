"""A streaming scanner that finds the end of a JSON value and repairs text that is nearly JSON.

The value is an object, an array or a string, whose last character shows the end. Work is linear in
the text. The scanner keeps only the open brackets, the unfinished key or number, and an escape.

Models write text that is nearly JSON. It may have line breaks within strings, backslashes that
escape nothing, or half a surrogate pair. It may have Python's words and quotes, no quotes at all,
or a comma after the last member. The scanner converts these to JSON, and leaves all other text as
it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import isfinite

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"""[^'"\\\x00-\x1f]*""")}
_ESCAPE = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}')
_BEGUN_ESCAPE = re.compile(r"u[0-9a-fA-F]{0,3}")
_HIGH, _LOW = re.compile(r"\\u[dD][89abAB]..", re.DOTALL), re.compile(r"\\u[dD][c-fC-F]..")
_NO_CHARACTER = "\\ufffd"  # replaces half a surrogate pair
# matches up to a character with which a marker may begin
_ATOM_PART = re.compile(r'[^,:{}\[\]"<`\r\n]*')
_KEY_PART = re.compile(r"[-\w]*")
_ATOM = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_MAX_ATOM = 400  # maximum characters of a number or word; no double needs as many
_CONTROLS = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSES = {"{": "}", "[": "]"}


class JsonScanner:
    """A scanner of one JSON value. Once `is_whole` or `is_broken`, it takes no more text."""

    def __init__(self) -> None:
        self.is_whole = False
        self.is_broken = False
        self._open: list[str] = []
        self._expects: _State = JsonScanner._root
        self._atom = ""
        self._escape = ""
        self._high = ""  # the first half of a surrogate pair
        self._quote = ""  # the opening quote of the unfinished string
        self._is_key = False
        self._shown: list[str] = []
        self._pending: list[str] = []

    @classmethod
    def after_key(cls) -> JsonScanner:
        """Make a scanner of the rest of an object after a key."""
        scanner = cls()
        scanner._open, scanner._expects = ["{"], cls._colon
        return scanner

    @classmethod
    def after_value(cls) -> JsonScanner:
        """Make a scanner of the rest of an object after a key and its value."""
        scanner = cls()
        scanner._open, scanner._expects = ["{"], cls._comma
        return scanner

    def feed(self, text: str, at: int = 0) -> tuple[str, int]:
        """Scan `text` from `at`; return the JSON that is certain now, and the index reached."""
        while at < len(text) and not (self.is_whole or self.is_broken):
            at = self._expects(self, text, at)
        return self._taken(), at

    def close(self) -> str:
        """End the scan; return the text that completes the JSON passed on so far."""
        if self._quote and not self._is_key:
            self._show(_NO_CHARACTER if self._high else "", self._quoted())
        elif self._expects is JsonScanner._atom_part and self._atom.strip():
            self._show_value(_json_of(_finished(self._atom.rstrip())))
        self._pending = []
        closes = [_CLOSES[bracket] for bracket in reversed(self._open)]
        return self._taken() + "".join(closes)

    @property
    def rest(self) -> str:
        """The text of an incomplete member that was read but not passed on."""
        return "".join(self._pending).lstrip(", \t\r\n") + self._atom * self.is_broken

    def _taken(self) -> str:
        shown, self._shown = "".join(self._shown), []
        return shown

    def _show(self, *parts: str) -> None:
        (self._pending if self._is_key else self._shown).extend(parts)

    def _show_value(self, text: str) -> None:
        """Pass on the pending text, then `text`, which begins a value or closes a bracket."""
        self._shown += [*self._pending, text]
        self._pending = []

    def _root(self, text: str, at: int) -> int:
        if text[at] in _CLOSES or text[at] in _PLAIN:
            return self._value(text, at)
        return self._fail(at)

    def _spaces(self, text: str, at: int) -> int:
        end = _end(_SPACE, text, at)
        if end > at:
            self._pending.append(text[at:end])
        return end

    def _value(self, text: str, at: int) -> int:
        at = self._spaces(text, at)
        char = text[at : at + 1]
        if char in _PLAIN:
            self._show_value('"')
            self._quote, self._expects = char, JsonScanner._string
        elif char in _CLOSES:
            self._show_value(char)
            self._open.append(char)
            is_object = char == "{"
            self._expects = JsonScanner._first_key if is_object else JsonScanner._first_item
        elif char == "]" and self._open[-1] == "[":
            return self._close_after_comma(at)
        elif char:
            self._atom, self._expects = "", JsonScanner._atom_part
            return at
        return at + len(char)

    def _first_item(self, text: str, at: int) -> int:
        at = self._spaces(text, at)
        return self._close(at, "]") if text[at : at + 1] == "]" else self._value(text, at)

    def _first_key(self, text: str, at: int) -> int:
        at = self._spaces(text, at)
        return self._close(at, "}") if text[at : at + 1] == "}" else self._key(text, at)

    def _key(self, text: str, at: int) -> int:
        at = self._spaces(text, at)
        char = text[at : at + 1]
        if char == "}":
            return self._close_after_comma(at)
        if char and char not in _PLAIN:
            self._atom, self._expects = "", JsonScanner._bare_key
            return at
        if char:
            self._quote, self._is_key, self._expects = char, True, JsonScanner._string
            self._pending.append('"')
        return at + len(char)

    def _bare_key(self, text: str, at: int) -> int:
        end = _end(_KEY_PART, text, at)
        self._atom += text[at:end]
        if not self._atom or len(self._atom) >= _MAX_ATOM:
            return self._fail(end)
        if end < len(text):
            self._pending.append(f'"{self._atom}"')
            self._atom, self._expects = "", JsonScanner._colon
        return end

    def _colon(self, text: str, at: int) -> int:
        at = self._spaces(text, at)
        if text[at : at + 1] not in ("", ":"):
            return self._fail(at)
        if at < len(text):
            self._pending.append(":")
            self._expects = JsonScanner._value
        return min(at + 1, len(text))

    def _comma(self, text: str, at: int) -> int:
        at = self._spaces(text, at)
        char = text[at : at + 1]
        if char == ",":
            self._pending.append(char)
            is_object = self._open[-1] == "{"
            self._expects = JsonScanner._key if is_object else JsonScanner._value
        elif char and char == _CLOSES[self._open[-1]]:
            return self._close(at, char)
        elif char:
            return self._fail(at)
        return at + len(char)

    def _string(self, text: str, at: int) -> int:
        end = _end(_PLAIN[self._quote], text, at)
        char = text[end : end + 1]
        if self._high and (end > at or char not in ("", "\\")):
            self._show(_NO_CHARACTER)
            self._high = ""
        self._show(text[at:end])
        if char == self._quote:
            self._string_ended()
        elif char == "\\":
            self._escape, self._expects = "", JsonScanner._in_escape
        elif char == '"':
            self._show('\\"')
        elif char:
            self._show(_CONTROLS.get(char, f"\\u{ord(char):04x}"))
        return end + len(char)

    def _quoted(self) -> str:
        self._quote, self._high = "", ""
        return '"'

    def _string_ended(self) -> None:
        self._show(self._quoted())
        if self._is_key:
            self._is_key, self._expects = False, JsonScanner._colon
        else:
            self._value_ended()

    def _in_escape(self, text: str, at: int) -> int:
        escape = self._escape + text[at]
        if _ESCAPE.fullmatch(escape):
            self._escaped(f"\\{escape}")
            at += 1
        elif _BEGUN_ESCAPE.fullmatch(escape):
            self._escape = escape
            return at + 1
        elif escape == "'":
            self._escaped("'")
            at += 1
        else:  # no escape: the backslash stands for itself
            self._escaped(f"\\\\{self._escape}")
        self._expects = JsonScanner._string
        return at

    def _escaped(self, escape: str) -> None:
        """Pass on an escape. Hold the first half of a surrogate pair until the second comes."""
        is_low = _LOW.fullmatch(escape)
        if self._high:
            escape = self._high + escape if is_low else _NO_CHARACTER + escape
        elif is_low:
            escape = _NO_CHARACTER
        self._high = escape[-6:] if _HIGH.fullmatch(escape[-6:]) else ""
        self._show(escape.removesuffix(self._high) if self._high else escape)

    def _atom_part(self, text: str, at: int) -> int:
        end = _end(_ATOM_PART, text, at)
        self._atom += text[at : min(end, at + _MAX_ATOM)]
        atom = self._atom.rstrip()
        if len(self._atom) >= _MAX_ATOM or (end < len(text) and not atom):
            return self._fail(end)
        if end < len(text):
            self._show_value(_json_of(atom) + self._atom[len(atom) :])
            self._value_ended()
        return end

    def _close_after_comma(self, at: int) -> int:
        self._pending = [part for part in self._pending if part != ","]
        return self._close(at, _CLOSES[self._open[-1]])

    def _close(self, at: int, bracket: str) -> int:
        self._show_value(bracket)
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
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _finished(atom: str) -> str:
    words = (*PYTHON_WORDS, *PYTHON_WORDS.values())
    return next((word for word in words if word.startswith(atom)), atom)


def _json_of(atom: str) -> str:
    atom = PYTHON_WORDS.get(atom, atom)
    is_number = _ATOM.fullmatch(atom) and (atom in PYTHON_WORDS.values() or isfinite(float(atom)))
    return atom if is_number else json.dumps(atom, ensure_ascii=False)
