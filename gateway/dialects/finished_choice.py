"""The choices of an answer that is sent whole: each one's text, reasoning and calls, put together.

Knows: events and pieces. Does not know: how they are rendered.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from engine.link.messages import TokenLogprobs
from gateway.generation.choice import ChoiceEnded, Delta, Event, ScoredPrompt
from gateway.turn_formats.pieces import (
    CallArguments,
    CallStarted,
    Piece,
    ReasoningPiece,
    TextPiece,
)


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A call; its arguments are the JSON of an object, unless the answer was cut off in it."""

    name: str
    arguments: str

    def object(self) -> dict[str, Any]:
        """The arguments as an object; an empty one where the answer was cut off in them."""
        try:
            value = msgspec.json.decode(self.arguments)
        except msgspec.DecodeError:
            return {}
        return value if isinstance(value, dict) else {}


FinishedPiece = TextPiece | ReasoningPiece | FinishedCall


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """One choice, complete."""

    index: int
    pieces: tuple[FinishedPiece, ...]  # of a kind never two beside each other, but for calls
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    end: ChoiceEnded
    prompt: ScoredPrompt | None = None

    @property
    def text(self) -> str:
        """The text, without reasoning and calls."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, TextPiece))

    @property
    def reasoning(self) -> str:
        """What came as reasoning."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, ReasoningPiece))

    @property
    def calls(self) -> list[FinishedCall]:
        """All calls."""
        return [piece for piece in self.pieces if isinstance(piece, FinishedCall)]


async def gather(events: AsyncIterable[Event]) -> list[FinishedChoice]:
    """All choices of an answer, in the order of their index."""
    gathering: dict[int, _Gathering] = {}
    finished = []
    async for event in events:
        choice = gathering.setdefault(event.index, _Gathering())
        if isinstance(event, Delta):
            if event.is_restart:
                choice = gathering[event.index] = _Gathering()
            choice.add(event)
        else:
            finished.append(choice.finished(event))
    return sorted(finished, key=lambda choice: choice.index)


@dataclass(slots=True)
class _Gathering:
    pieces: list[Piece] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt: ScoredPrompt | None = None

    def add(self, delta: Delta) -> None:
        self.prompt = self.prompt or delta.prompt
        self.pieces += pieces_of(delta)
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs

    def finished(self, end: ChoiceEnded) -> FinishedChoice:
        logprobs = None if self.logprobs is None else tuple(self.logprobs)
        pieces = tuple(_joined(self.pieces))
        token_ids = tuple(self.token_ids)
        return FinishedChoice(end.index, pieces, token_ids, logprobs, end, self.prompt)


def pieces_of(delta: Delta) -> tuple[Piece, ...]:
    """What a delta adds to the turn, also where it was not parsed."""
    if delta.pieces is not None:
        return delta.pieces
    return (TextPiece(delta.text),) if delta.text else ()


def _joined(pieces: Iterable[Piece]) -> Iterator[FinishedPiece]:
    """Pieces of a kind that stand together as one, and each call with its arguments."""
    for _, some in groupby(_in_calls(pieces), key=lambda pair: pair[0]):
        first, *rest = [piece for _, piece in some]
        texts = "".join(piece.text for piece in rest if not isinstance(piece, CallStarted))
        match first:
            case CallStarted(name):
                yield FinishedCall(name, texts)
            case TextPiece(text):
                yield TextPiece(text + texts)
            case ReasoningPiece(text):
                yield ReasoningPiece(text + texts)


def _in_calls(pieces: Iterable[Piece]) -> Iterator[tuple[object, Piece]]:
    """Each piece with what it is part of: text, reasoning, or a call of some number."""
    calls = 0
    for piece in pieces:
        calls += isinstance(piece, CallStarted)
        is_call = isinstance(piece, CallStarted | CallArguments)
        yield (calls if is_call else type(piece)), piece
