"""The recording of each choice's generated turn, to be remembered when the choice ends.

Elsewhere: how turns are remembered (`gateway/prompts/verbatim_turns`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.generation.choice import ChoiceEnded, Event
from gateway.turn_formats.pieces import Piece, TextPiece

Remember = Callable[[Sequence[Piece], Sequence[int]], None]


@dataclass(slots=True)
class _Turn:
    pieces: list[Piece] = field(default_factory=list)
    # the choice's tokens, 4 bytes each; in a list each token would take 36 bytes
    token_ids: array[int] = field(default_factory=lambda: array("i"))


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
                self._remember(turn.pieces, turn.token_ids)
            return
        if event.is_restart:
            self._turns.pop(event.index, None)
        turn = self._turns.setdefault(event.index, _Turn())
        turn.token_ids.extend(event.token_ids)
        if event.pieces is not None:
            turn.pieces += event.pieces
        elif event.text:
            turn.pieces.append(TextPiece(event.text))
