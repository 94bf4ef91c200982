"""A limit on the number of calls in a turn."""

from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, TextPiece
from gateway.turn_formats.reading import SPACE
from gateway.turn_formats.turn_format import TurnParser


class CallLimit:
    """A `TurnParser` that ends the turn of `parser` after the last allowed call.

    The turn ends only when text or another call follows. The model can therefore still write the
    markers that close the last call.
    """

    def __init__(self, parser: TurnParser, most: int) -> None:
        self.is_over = False
        self._parser = parser
        self._left = most

    def feed(self, text: str) -> list[Piece]:
        return self._kept(self._parser.feed(text))

    def end(self, *, is_cut: bool = False) -> list[Piece]:
        return self._kept(self._parser.end(is_cut=is_cut))

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            self.is_over = self.is_over or self._is_too_much(piece)
            if self.is_over:
                break
            self._left -= isinstance(piece, CallStarted)
            kept.append(piece)
        return kept

    def _is_too_much(self, piece: Piece) -> bool:
        if self._left or isinstance(piece, CallArguments):
            return False
        return not (isinstance(piece, TextPiece) and not piece.text.strip(SPACE))
