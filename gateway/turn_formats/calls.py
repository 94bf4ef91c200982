"""The parsing of calls with JSON arguments, common to several formats.

A *call object* is `{"name": ..., "arguments": {...}}`, with its members in any order. `arguments`
may be called `parameters`, and `name` may be called `function` or `tool_name`. Both may be within a
member `function`. The members `id`, `tool_call_id` and `type` are ignored. Some models write call
objects as `{name: {...}}`.
"""

import re

import msgspec

from gateway.turn_formats.json_scanner import JsonScanner
from gateway.turn_formats.pieces import CallArguments, CallStarted, TextPiece
from gateway.turn_formats.reading import SPACE, Markers, Read, TurnReader

_OPEN, _COLON, _COMMA, _CLOSE = (Markers(char) for char in "{:,}")
_LIST = Markers("[")
_SURPLUS = re.compile(r"[ \t\r\n}]*")  # extra closing braces, which some models write
_DOUBLED = Markers("{{")  # braces as in prompts written for Python's `format`
BETWEEN = re.compile(r"[ \t\r\n,;]*")  # characters between calls
_LIST_ENDS = re.compile(r"[ \t\r\n\]]*")
_MAX_NAME = 1024  # maximum number of characters of a name or a key
_MAX_HELD = 1 << 16  # maximum number of characters of a value that is held and not streamed
_NAMES = ("name", "function", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_PASSED_OVER = ("id", "type", "tool_call_id")
MEMBERS = (*_NAMES, *_ARGUMENTS, *_PASSED_OVER)
_NAMESPACE = "functions."  # prefix that some models write before a name
_NOTHING = ("", "null", "None", "[]")


class CallReader(TurnReader):
    """The base class of turn readers that parse calls."""

    names_are_keys = False  # whether call objects are `{name: arguments}`

    def known(self, name: str) -> str | None:
        """Return the known tool of this name, with or without its namespace, or None."""
        bare = name.removeprefix(_NAMESPACE)
        return next((one for one in (name, bare) if one in self.tools), None)

    def started(self, name: str) -> bool:
        """Start a call and drop the held text; return False if the tool is unknown."""
        known = self.known(name)
        if known is None:
            return False
        self.drop()
        self.pieces.append(CallStarted(known))
        return True

    def whole_call(self, name: str, arguments: str) -> None:
        """Send a whole call, if its tool is known."""
        if self.started(name):
            self.pieces.append(CallArguments(arguments))

    def call_of(self, name: str, ends: Markers) -> Read[bool]:
        """Read and send a call's arguments. If the text is no call, hold the text and return False.

        Missing arguments before one of `ends`, or before the end of the turn, become an empty
        object.
        """
        yield from self.spaces()
        follows = yield from self.peek()
        if self.known(name) is None or (not follows and self.is_cut):
            return False
        if follows == "{":
            self.started(name)
            if (yield from self.arguments(ends)):
                yield from self.run(_SURPLUS)
                self.drop()
            return True
        end = yield from self.literal(ends)
        if end:
            self.unread(end)
        written = "" if end else (yield from self.json_value(_MAX_HELD))
        arguments = _object_of(written) if written or end or not follows else None
        if arguments is not None:
            self.whole_call(name, arguments)
        return arguments is not None

    def arguments(self, ends: Markers) -> Read[bool]:
        """Send the next object as the started call's arguments; return whether the object is whole.

        If the object stops being JSON, the text up to one of `ends` is sent as text.
        """
        scanner = JsonScanner()
        if (yield from self.scan(scanner, CallArguments)):
            return True
        rest = scanner.rest
        yield from self.broken_arguments(scanner.close(), ends, rest)
        return False

    def broken_arguments(self, closes: str, ends: Markers, rest: str = "") -> Read[None]:
        """Close broken arguments with `closes`. Send the text up to one of `ends` as text.

        `rest` and the held text are sent before that text. At the turn's end both are dropped,
        since they belong to an incomplete member.
        """
        follows = yield from self.peek()
        self.pieces += [CallArguments(closes)] if closes and not self.is_cut else []
        if not follows:
            self.drop()
            return
        self.hold(rest)
        if not self.held().strip(SPACE):
            yield from self.run(_SURPLUS)
            self.drop()
        found = yield from self.until(ends, TextPiece)
        if found:
            self.unread(found)
            self.drop()
        self.send_unless_space()
        self.drop()

    def next_block(self, opens: Markers, closes: Markers | None = None) -> Read[str]:
        """Read the end of a block of calls; return the next block's marker, or "".

        A comma between two blocks is dropped. A comma before text is sent with the text.
        """
        if closes is not None:
            yield from self.spaces()
            if (yield from self.closing(closes)):
                self.drop()
        yield from self.run(BETWEEN)
        found = yield from self.literal(opens)
        if not found:
            follows = yield from self.peek()
            self.send_unless_space() if follows else self.drop()
            self.drop()
        return found

    def call_objects(self, ends: Markers) -> Read[bool]:
        """Read call objects, in a list or one after another; return False if an object is no call.

        `call_object` sends the text of an object that is no call. A comma after the last call is
        held.
        """
        yield from self.literal(_LIST)
        yield from self.spaces()
        while (yield from self.call_object(ends)):
            yield from self.run(BETWEEN)
            if (yield from self.peek()) != "{":
                if (yield from self.run(_LIST_ENDS)).strip(SPACE):
                    self.drop()
                return True
        return False

    def call_object(self, ends: Markers) -> Read[bool]:
        """Read a call object.

        If the text is no call, send it and return False. The text sent is the held text and the
        part of the object that was read. After broken arguments, text up to one of `ends` is sent
        as text.
        """
        if not ((yield from self.literal(_DOUBLED)) or (yield from self.literal(_OPEN))):
            self.send(TextPiece)
            return False
        if not (yield from _CallObject(self, ends).read()):
            return False
        yield from self.run(_SURPLUS)
        self.drop()
        return True


class _CallObject:
    def __init__(self, reader: CallReader, ends: Markers, *, is_inner: bool = False) -> None:
        self._reader = reader
        self._ends = ends
        self._is_inner = is_inner
        self._name: str | None = None
        self._early: str | None = None  # arguments that came before the name

    def read(self) -> Read[bool]:
        while True:
            key = yield from self._string()
            if key is None:
                return self._none()
            names = self._reader.names_are_keys and self._name is None and self._reader.known(key)
            self._name = key if names else self._name
            if not names and not self._is_known(key):
                return (yield from self._as_text(JsonScanner.after_key()))
            yield from self._reader.spaces()
            if not (yield from self._reader.literal(_COLON)):
                return self._none()
            yield from self._reader.spaces()
            if names or (key in _ARGUMENTS and self._name is not None):
                return (yield from self._arguments())
            may_open = key == "function" and not self._is_inner
            if may_open and (yield from self._reader.literal(_OPEN)):
                return (yield from self._inner())
            if not (yield from self._value(key)):
                return self._none()
            if self._name is not None and self._reader.known(self._name) is None:
                return (yield from self._as_text(JsonScanner.after_value()))
            yield from self._reader.spaces()
            if not (yield from self._reader.literal(_COMMA)):
                return (yield from self._ended())

    def _is_known(self, key: str) -> bool:
        if key in _ARGUMENTS:
            return self._early is None
        return key in _PASSED_OVER or (key in _NAMES and self._name is None)

    def _inner(self) -> Read[bool]:
        if not (yield from _CallObject(self._reader, self._ends, is_inner=True).read()):
            return False
        yield from self._rest()
        return True

    def _string(self) -> Read[str | None]:
        yield from self._reader.spaces()
        return _text_of((yield from self._reader.json_value(_MAX_NAME)))

    def _value(self, key: str) -> Read[bool]:
        if key in _NAMES:
            self._name = yield from self._string()
            return self._name is not None
        value = yield from self._reader.json_value(_MAX_HELD)
        if key in _ARGUMENTS:
            self._early = _object_of(value)
            return self._early is not None
        return bool(value)

    def _arguments(self) -> Read[bool]:
        """Read the arguments and send the call, whose name is known. Stream them if possible."""
        assert self._name is not None
        if (yield from self._reader.peek()) == "{":
            self._reader.started(self._name)
            if not (yield from self._reader.arguments(self._ends)):
                return True
        else:
            value = yield from self._reader.json_value(_MAX_HELD)
            self._early = _object_of(value) if value else None
            if self._early is None:
                return self._none()
            self._reader.whole_call(self._name, self._early)
        yield from self._rest()
        return True

    def _rest(self) -> Read[None]:
        if not (yield from self._reader.scan(JsonScanner.after_value(), None)):
            self._reader.send_unless_space()
        self._reader.drop()

    def _ended(self) -> Read[bool]:
        if self._name is None or not (yield from self._reader.literal(_CLOSE)):
            return self._none()
        self._reader.whole_call(self._name, self._early or "{}")
        return True

    def _none(self) -> bool:
        self._reader.send(TextPiece)
        return False

    def _as_text(self, scanner: JsonScanner) -> Read[bool]:
        """Send the rest of the object as text. Markers within its strings begin no call."""
        self._reader.send(TextPiece)
        yield from self._reader.as_text(scanner)
        return False


def _text_of(value: str) -> str | None:
    return msgspec.json.decode(value, type=str) if value.startswith('"') else None


def _object_of(value: str) -> str | None:
    """Return the JSON object in `value`, or in the JSON string that some models write around it.

    An empty text, an empty list and `null` are an empty object. Returns None for any other value.
    """
    inner = _text_of(value)
    value = (value if inner is None else inner).strip(SPACE)
    if value in _NOTHING:
        return "{}"
    shown, end = (scanner := JsonScanner()).feed(value)
    return shown if scanner.is_whole and end == len(value) and value[0] == "{" else None
