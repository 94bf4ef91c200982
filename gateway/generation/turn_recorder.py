"""The recording of each choice's generated turn, to be remembered when the choice ends.

Elsewhere: how turns are remembered (`gateway/prompts/verbatim_turns`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.generation.choice import ChoiceEnded, Event
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, ReasoningPiece, TextPiece

Remember = Callable[[Sequence[Piece], Sequence[int]], None]


@dataclass(slots=True)
class _Turn:
    pieces: list[Piece] = field(default_factory=list)
    # the choice's tokens, 4 bytes each; in a list each token would take 36 bytes
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    # kind and UTF-8 of the latest text, which grows; a piece for each token would take 110 bytes
    _kind: type[TextPiece | ReasoningPiece | CallArguments] | None = None
    _text: bytearray = field(default_factory=bytearray)

    def add(self, piece: Piece) -> None:
        """Add a piece to the turn. Neighbours of one kind become one piece."""
        if isinstance(piece, CallStarted):
            self.close()
            self.pieces.append(piece)
            return
        if type(piece) is not self._kind:
            self.close()
            self._kind = type(piece)
        self._text += piece.text.encode(errors="surrogatepass")

    def close(self) -> None:
        """End the latest text, if any."""
        if self._kind is not None:
            self.pieces.append(self._kind(self._text.decode(errors="surrogatepass")))
            self._kind = None
            self._text.clear()


class TurnRecorder:
    """A recorder that passes the pieces and tokens of each ended choice to `remember`.

    A choice that is not shown completely is not recorded, because its shown pieces lack some of its
    tokens.
    """

    def __init__(self, remember: Remember) -> None:
        self._remember = remember
        self._turns: dict[int, _Turn] = {}

    def see(self, event: Event) -> None:
        """Record an event of the answer."""
        if isinstance(event, ChoiceEnded):
            turn = self._turns.pop(event.index, _Turn())
            if event.is_all_shown:
                turn.close()
                self._remember(turn.pieces, turn.token_ids)
            return
        if event.is_restart:
            self._turns.pop(event.index, None)
        turn = self._turns.setdefault(event.index, _Turn())
        turn.token_ids.extend(event.token_ids)
        if event.pieces is not None:
            for piece in event.pieces:
                turn.add(piece)
        elif event.text:
            turn.add(TextPiece(event.text))
