"""A turn with at most so many calls, whatever the model writes.

Knows: pieces. Does not know: formats.
"""

from __future__ import annotations

from gateway.turn_formats.pieces import CallStarted, Piece
from gateway.turn_formats.turn_format import TurnParser


class CallLimit:
    """A `TurnParser`: what `parser` reads, up to the call that is one too many."""

    def __init__(self, parser: TurnParser, most: int) -> None:
        self._parser = parser
        self._left = most

    def feed(self, text: str) -> list[Piece]:
        """As much as is certain."""
        return self._kept(self._parser.feed(text))

    def end(self) -> list[Piece]:
        """What was held back."""
        return self._kept(self._parser.end())

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            self._left -= isinstance(piece, CallStarted)
            if self._left >= 0:
                kept.append(piece)
        return kept
