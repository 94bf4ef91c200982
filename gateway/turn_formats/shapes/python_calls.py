"""The readers of calls in Python's syntax.

[get_weather(city="Oslo", days=3), get_time()]
"""

import re
from collections.abc import Sequence

import msgspec

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.pieces import CallArguments, TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.shapes.python_literal import as_json, unquoted
from gateway.turn_formats.shapes.schemas import ParameterTypes
from gateway.turn_formats.shapes.strings import string
from gateway.turn_formats.shapes.values import typed
from gateway.turn_formats.turn_format import ToolSpec

_OPEN, _CLOSE, _COMMA, _EQUALS = Markers("["), Markers("]"), Markers(","), Markers("=")
_CALL_OPENS, _CALL_CLOSES = Markers("("), Markers(")")
_QUOTES = Markers("'''", '"""', "'", '"')
_NAME = re.compile(r"[\w.-]*")
_MAX_NAME = 256
_AFTER_TEXT = ("", ",", ")", "]", "}", ":")  # characters after a text in a literal
_PLAIN_VALUE = re.compile(r"""[^'"()\[\]{},]*""")
_PLAIN_TEXT = re.compile(r"""[^\\'"]*""")


class PythonicReader(CallReader):
    """A parser of a list of calls that begins the turn, perhaps after the marker `start`."""

    def __init__(self, tools: Sequence[ToolSpec], start: str, end: str) -> None:
        super().__init__(tools)
        self._parameters = {tool.name: ParameterTypes(tool) for tool in tools}
        self._starts, self._ends = Markers(start), Markers(end)

    def turn(self) -> Read[None]:
        yield from self.spaces()
        if (yield from self.literal(self._starts)):
            yield from self.spaces()
        if (yield from self.literal(_OPEN)):
            yield from self._calls()
        yield from super().turn()

    def _calls(self) -> Read[None]:
        while (yield from self._call()):
            yield from self.spaces()
            if (yield from self.literal(_COMMA)):
                yield from self.spaces()
            is_closed = yield from self.literal(_CLOSE)
            yield from self.spaces()
            is_ended = yield from self.closing(self._ends)
            if is_closed or is_ended or not (yield from self.peek()):
                yield from self.spaces()
                self.drop()
                return

    def _call(self) -> Read[bool]:
        yield from self.spaces()
        name = yield from self.run(_NAME, _MAX_NAME)
        return (yield from self.call_named(name, self._ends))

    def call_named(self, name: str, ends: Markers) -> Read[bool]:
        """Read a call after its name. If it is no call, send it as text and return False."""
        yield from self.spaces()
        if not (yield from self.literal(_CALL_OPENS)) or not self.started(name):
            self.send(TextPiece)
            return False
        known = self.known(name)
        assert known is not None
        closes = yield from self._arguments(self._parameters[known])
        if closes:
            yield from self.broken_arguments(closes, ends)
        return True

    def _arguments(self, parameters: ParameterTypes) -> Read[str]:
        """Read and send arguments; return the text that closes broken arguments, else ""."""
        before = "{"
        while True:
            yield from self.spaces()
            closes = "{}" if before == "{" else "}"
            if (yield from self.literal(_CALL_CLOSES)):
                self.drop()
                self.pieces.append(CallArguments(closes))
                return ""
            name = yield from self.run(_NAME, _MAX_NAME)
            yield from self.spaces()
            if not name or not (yield from self.literal(_EQUALS)):
                return closes
            written = yield from self._value(parameters, name)
            if written is None:
                return closes
            self.drop()
            self.pieces.append(CallArguments(f"{before}{string(name)}: {written}"))
            before = ", "

    def _value(self, parameters: ParameterTypes, name: str) -> Read[str | None]:
        """Read a value and the comma after it; return its JSON, or None if it is cut off.

        A value that is no Python literal becomes a string, as it was written.
        """
        yield from self.spaces()
        self.drop()
        if not (yield from self._literal()) and self.is_cut:
            return None
        written = self.held().strip()
        value = as_json(written) or string(unquoted(written))
        types = parameters.types(name)
        if value.startswith('"') and "string" not in types:
            value = typed(msgspec.json.decode(value, type=str), types)
        yield from self.literal(_COMMA)
        return value

    def _literal(self) -> Read[bool]:
        """Read up to the comma or bracket after a literal; return False at the turn's end."""
        depth = 0
        while True:
            yield from self.run(_PLAIN_VALUE)
            follows = yield from self.peek()
            if follows in ("'", '"'):
                yield from self._string()
                continue
            if not follows or (depth == 0 and follows in ",)]}"):
                return bool(follows)
            depth += {",": 0}.get(follows, 1 if follows in "([{" else -1)
            yield from self.character()

    def _string(self) -> Read[None]:
        """Read a text. Only a quote before `_AFTER_TEXT` or the turn's end closes the text."""
        opened = yield from self.literal(_QUOTES)
        if not opened:  # the turn was cut off here
            return
        quote = Markers(opened)
        while True:
            yield from self.run(_PLAIN_TEXT)
            if (yield from self.literal(quote)):
                yield from self.spaces()
                if (yield from self.peek()) in _AFTER_TEXT:
                    return
                continue
            if not (follows := (yield from self.peek())):
                return
            yield from self.character()
            if follows == "\\":
                yield from self.character()


class MarkedPythonicReader(PythonicReader):
    """A parser of calls between the markers `start` and `end`, anywhere in the turn.

    The calls may also be a list of JSON objects, which LFM2 writes if a system prompt asks for it.
    """

    def __init__(
        self, tools: Sequence[ToolSpec], start: str, end: str, *, in_list: bool = True
    ) -> None:
        super().__init__(tools, start, end)
        self._in_list = in_list

    def turn(self) -> Read[None]:
        while (yield from self.until(self._starts, TextPiece)):
            yield from self.spaces()
            is_list = yield from self.literal(_OPEN)
            if (yield from self.peek()) == "{":
                yield from self._objects()
            elif is_list or not self._in_list:
                yield from self._calls()
            else:
                self.send(TextPiece)
        self.send(TextPiece)

    def _objects(self) -> Read[None]:
        if (yield from self.call_objects(self._ends)):
            yield from self.spaces()
            yield from self.closing(self._ends)
            yield from self.spaces()
            self.drop()
