"""Calls as JSON objects between two marks, alone or in a list: the parser of several families."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.reading import Markers, Read
from gateway.turn_formats.turn_format import ToolSpec


class ObjectReader(CallReader):
    """A parser of call objects after `opens`; marks in `around_text` are no text."""

    def __init__(
        self, tools: Sequence[ToolSpec], opens: str, closes: str, around_text: Sequence[str] = ()
    ) -> None:
        """Read calls of `tools`."""
        super().__init__(tools)
        self._opens, self._closes = Markers(opens), Markers(closes)
        self._either = Markers(opens, closes)
        self._around_text = frozenset(around_text)
        self._begins = Markers(opens, *around_text)

    def turn(self) -> Read[None]:
        """Read a whole turn."""
        while found := (yield from self.until(self._begins, TextPiece)):
            if found in self._around_text:
                yield from self.spaces()
                self.drop()
            else:
                yield from self._calls()
        self.send(TextPiece)

    def _calls(self) -> Read[None]:
        """Read the call after the opening mark, or several calls, as some models write."""
        yield from self.spaces()
        while (yield from self.call_objects(self._either)):
            if not (yield from self.next_block(self._opens, self._closes)):
                return
            yield from self.spaces()
