"""Calls whose arguments are JSON, as several formats write them.

A *call object* is `{"name": ..., "arguments": {...}}`, in any order, also with `parameters` in
place of `arguments`, and with an `id` or a `type` that is passed over.
"""

from __future__ import annotations

import msgspec

from gateway.turn_formats.json_scanner import JsonScanner
from gateway.turn_formats.pieces import CallArguments, CallStarted, TextPiece
from gateway.turn_formats.reading import SPACE, Markers, Read, TurnReader

_OPEN, _COLON, _COMMA, _CLOSE = (Markers(char) for char in "{:,}")
_MAX_NAME = 1024  # characters of a name or a key
_MAX_HELD = 1 << 16  # characters of arguments that come before their call's name
_ARGUMENTS = ("arguments", "parameters")
_PASSED_OVER = ("id", "type")
MEMBERS = ("name", *_ARGUMENTS, *_PASSED_OVER)  # that an object may have and be a call


class CallReader(TurnReader):
    """Reads calls for a format."""

    def started(self, name: str) -> bool:
        """Begins a call, if there is such a tool. What is held is dropped then."""
        if name not in self.tools:
            return False
        self.drop()
        self.pieces.append(CallStarted(name))
        return True

    def arguments(self, ends: Markers) -> Read[bool]:
        """Sends the object that stands here as the started call's arguments; whether it is whole.

        From where it is no JSON any more, all before one of `ends` is sent as it was written.
        """
        if (yield from self.scan(JsonScanner(), CallArguments)):
            return True
        yield from self.broken_arguments(ends)
        return False

    def broken_arguments(self, ends: Markers) -> Read[None]:
        """Sends all before one of `ends` as arguments, but for space around it."""
        found = yield from self.until(ends, CallArguments)
        if found:
            self.unread(found)
            self.drop()
        self.send(CallArguments)

    def call_object(self, ends: Markers) -> Read[bool]:
        """Reads a call object; False if none stands here.

        Then what is held, and as much as was read of an object, is sent as text. What is broken
        within arguments is passed on up to one of `ends`.
        """
        if not (yield from self.literal(_OPEN)):
            self.send(TextPiece)
            return False
        return (yield from _CallObject(self, ends).read())


class _CallObject:
    """The members of a call object that were read."""

    def __init__(self, reader: CallReader, ends: Markers) -> None:
        self._reader = reader
        self._ends = ends
        self._name: str | None = None
        self._early: str | None = None  # arguments that came before the name

    def read(self) -> Read[bool]:
        """What follows the opening brace."""
        while True:
            key = yield from self._string()
            if key is None:
                return self._none()
            if not self._is_known(key):
                return (yield from self._as_text(JsonScanner.after_key()))
            yield from self._reader.spaces()
            if not (yield from self._reader.literal(_COLON)):
                return self._none()
            yield from self._reader.spaces()
            if key in _ARGUMENTS and self._name is not None:
                return (yield from self._arguments())
            if not (yield from self._value(key)):
                return self._none()
            if self._name is not None and self._name not in self._reader.tools:
                return (yield from self._as_text(JsonScanner.after_value()))
            yield from self._reader.spaces()
            if not (yield from self._reader.literal(_COMMA)):
                return (yield from self._ended())

    def _is_known(self, key: str) -> bool:
        if key in _ARGUMENTS:
            return self._early is None
        return key in _PASSED_OVER or (key == "name" and self._name is None)

    def _string(self) -> Read[str | None]:
        yield from self._reader.spaces()
        return _text_of((yield from self._reader.json_value(_MAX_NAME)))

    def _value(self, key: str) -> Read[bool]:
        """Reads the value of any member but arguments that can be sent as they come."""
        if key not in _ARGUMENTS:
            value = yield from self._string()
            if key == "name":
                self._name = value
            return value is not None
        self._early = _object_of((yield from self._reader.json_value(_MAX_HELD)))
        return self._early is not None

    def _arguments(self) -> Read[bool]:
        """The name is known: the arguments are sent as they come."""
        assert self._name is not None
        if (yield from self._reader.peek()) != "{":
            self._early = _object_of((yield from self._reader.json_value(_MAX_HELD)))
            if self._early is None:
                return self._none()
            self._whole_call(self._early)
        else:
            self._reader.started(self._name)
            if not (yield from self._reader.arguments(self._ends)):
                return True
        yield from self._rest()
        return True

    def _rest(self) -> Read[None]:
        """Passes over what follows the arguments within the object."""
        if not (yield from self._reader.scan(JsonScanner.after_value(), None)):
            self._reader.send_unless_space()
        self._reader.drop()

    def _ended(self) -> Read[bool]:
        """No member follows: a call if it has a name, with arguments or without."""
        if self._name is None or not (yield from self._reader.literal(_CLOSE)):
            return self._none()
        self._whole_call(self._early or "{}")
        return True

    def _whole_call(self, arguments: str) -> None:
        assert self._name is not None
        self._reader.started(self._name)
        self._reader.pieces.append(CallArguments(arguments))

    def _none(self) -> bool:
        self._reader.send(TextPiece)
        return False

    def _as_text(self, scanner: JsonScanner) -> Read[bool]:
        """The rest of the object is text, so that no marker within its strings is one."""
        self._reader.send(TextPiece)
        yield from self._reader.as_text(scanner)
        return False


def _text_of(value: str) -> str | None:
    """The text of a JSON string; None if it is none."""
    if not value.startswith('"'):
        return None
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:  # half of a surrogate pair
        return None


def _object_of(value: str) -> str | None:
    """The object that `value` is, or that a string holds: some models write it so."""
    inner = _text_of(value)
    if inner is None:
        return value if value.startswith("{") else None
    inner = inner.strip(SPACE)
    shown, end = (scanner := JsonScanner()).feed(inner)
    return shown if scanner.is_whole and end == len(inner) and inner[0] == "{" else None
