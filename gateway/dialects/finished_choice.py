"""The choices of a whole answer: each choice's text, reasoning and calls, joined from deltas."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import msgspec

from gateway.errors import BadRequest
from gateway.generation.choice import ChoiceEnded, Delta, Event, ScoredPrompt
from gateway.generation.packed_logprobs import PackedLogprobs
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, ReasoningPiece, TextPiece


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A finished call. Its arguments are a JSON object, unless the answer ended within them."""

    name: str
    arguments: str

    def object(self) -> dict[str, Any]:
        """Decode the arguments, or return an empty object if the answer ended within them.

        Raises BadRequest for too deeply nested arguments.
        """
        try:
            value = msgspec.json.decode(self.arguments)
        except msgspec.DecodeError:
            return {}
        except RecursionError:
            raise BadRequest("the arguments of a call are nested too deep to be read") from None
        return value if isinstance(value, dict) else {}


FinishedPiece = TextPiece | ReasoningPiece | FinishedCall

_PIECE_BYTES = 128
_CHARACTER_BYTES = 4  # maximum number of bytes of a character in memory
# bytes of text that take as long to encode as one character takes to tokenise
_BYTES_PER_CHARACTER = 16


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """One finished choice of an answer."""

    index: int
    pieces: tuple[FinishedPiece, ...]  # adjacent pieces have different kinds, except adjacent calls
    token_ids: Sequence[int]
    logprobs: PackedLogprobs | None
    end: ChoiceEnded
    prompt: ScoredPrompt | None = None

    @property
    def text(self) -> str:
        """The choice's text, without reasoning and calls."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, TextPiece))

    @property
    def reasoning(self) -> str:
        """The choice's reasoning."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, ReasoningPiece))

    @property
    def calls(self) -> list[FinishedCall]:
        """The choice's calls."""
        return [piece for piece in self.pieces if isinstance(piece, FinishedCall)]

    @property
    def work(self) -> int:
        """The work of encoding the choice as JSON, in units of one tokenised character."""
        scored = 0 if self.prompt is None else self.prompt.work
        logprobs = 0 if self.logprobs is None else self.logprobs.nbytes
        said = sum(map(_size_of, self.pieces)) + len(self.token_ids)
        return scored + logprobs + len(self.end.embedding) + said // _BYTES_PER_CHARACTER


def _size_of(piece: FinishedPiece) -> int:
    return _PIECE_BYTES + len(piece.arguments if isinstance(piece, FinishedCall) else piece.text)


async def gather(
    events: AsyncIterable[Event], grew: Callable[[int], None] = lambda _: None
) -> list[FinishedChoice]:
    """Collect all choices of an answer, in the order of their index.

    `grew` is called for each event with the number of added bytes. The number is negative if a
    choice restarts and drops its pieces.
    """
    gathering: dict[int, _Gathering] = {}
    finished = []
    async for event in events:
        choice = gathering.setdefault(event.index, _Gathering())
        if isinstance(event, Delta):
            before = choice.nbytes
            if event.is_restart:
                choice = gathering[event.index] = _Gathering()
            choice.add(event)
            grew(choice.nbytes - before)
        else:
            finished.append(choice.finished(event))
            grew(len(event.embedding) + len(event.candidates))
            del gathering[event.index]
    return sorted(finished, key=lambda choice: choice.index)


@dataclass(slots=True)
class _Gathering:
    nbytes: int = 0
    turn: JoinedPieces = field(default_factory=lambda: JoinedPieces())
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    logprobs: PackedLogprobs | None = None
    prompt: ScoredPrompt | None = None

    def add(self, delta: Delta) -> None:
        if self.prompt is None and delta.prompt is not None:
            self.prompt = delta.prompt.packed()
            self.nbytes += self.prompt.nbytes
        for piece in pieces_of(delta):
            self.nbytes += self.turn.add(piece)
        self.token_ids.extend(delta.token_ids)
        self.nbytes += self.token_ids.itemsize * len(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = PackedLogprobs() if self.logprobs is None else self.logprobs
            before = self.logprobs.nbytes
            self.logprobs.extend(delta.logprobs)
            self.nbytes += self.logprobs.nbytes - before

    def finished(self, end: ChoiceEnded) -> FinishedChoice:
        pieces = self.turn.finished()
        return FinishedChoice(end.index, pieces, self.token_ids, self.logprobs, end, self.prompt)


def pieces_of(delta: Delta) -> tuple[Piece, ...]:
    """Return the pieces of `delta`. An unparsed text is one piece."""
    if delta.pieces is not None:
        return delta.pieces
    return (TextPiece(delta.text),) if delta.text else ()


class JoinedPieces:
    """A joiner that makes one piece of adjacent pieces of one kind, and of a call's pieces."""

    def __init__(self) -> None:
        self._closed: list[FinishedPiece] = []
        self._open: Piece | None = None
        self._text = StringIO()

    def add(self, piece: Piece) -> int:
        """Append a piece; return an upper bound on its bytes in memory."""
        begins = self._begins(piece)
        if begins:
            self._close()
            self._open = piece
        text = "" if isinstance(piece, CallStarted) else piece.text
        self._text.write(text)
        return begins * _PIECE_BYTES + _CHARACTER_BYTES * len(text)

    def finished(self) -> tuple[FinishedPiece, ...]:
        """Return the joined pieces. Later calls of `add` are not allowed."""
        self._close()
        return tuple(self._closed)

    def _begins(self, piece: Piece) -> bool:
        if isinstance(piece, CallArguments):
            return False
        return isinstance(piece, CallStarted) or type(piece) is not type(self._open)

    def _close(self) -> None:
        text = self._text.getvalue()
        match self._open:
            case CallStarted(name):
                self._closed.append(FinishedCall(name, text))
            case TextPiece():
                self._closed.append(TextPiece(text))
            case ReasoningPiece():
                self._closed.append(ReasoningPiece(text))
        self._open, self._text = None, StringIO()
