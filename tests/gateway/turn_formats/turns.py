"""Turns as tables: a model's text, and the pieces that a parser must return.

Each turn is fed to the parser whole, by single characters, and split in two at every third
position.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gateway.turn_formats.pieces import (
    CallArguments,
    CallStarted,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from gateway.turn_formats.turn_format import ToolSpec, TurnParser

Parsers = Callable[[], TurnParser]
Turn = tuple[str, list[Piece]]  # a model's text, and the expected pieces

WEATHER = ToolSpec(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "where": {"type": "object"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
CLOCK = ToolSpec("clock", None)
TOOLS = (WEATHER, CLOCK)


def text(value: str) -> Piece:
    return TextPiece(value)


def thought(value: str) -> Piece:
    return ReasoningPiece(value)


def call(name: str, arguments: str) -> list[Piece]:
    """Make the piece of a call whose arguments are written as `arguments`."""
    return [CallStarted(name), CallArguments(arguments)]


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Join adjacent pieces of the same kind."""
    whole: list[Piece] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if not isinstance(piece, CallStarted) and type(piece) is type(last):
            assert last is not None
            whole[-1] = type(piece)(last.text + piece.text)
        else:
            whole.append(piece)
    return whole


def read(parser: TurnParser, parts: Iterable[str], *, is_cut: bool = False) -> list[Piece]:
    pieces = [piece for part in parts for piece in parser.feed(part)]
    pieces += parser.end(is_cut=is_cut)
    assert not any(
        piece in (TextPiece(""), ReasoningPiece(""), CallArguments("")) for piece in pieces
    )
    return joined(pieces)


def ways_to_cut(written: str) -> Iterator[list[str]]:
    yield [written]
    yield list(written)
    for place in range(len(written) % 3, len(written) + 1, 3):
        yield [written[:place], written[place:]]


def check(parsers: Parsers, turn: Turn, *, is_cut: bool = False) -> None:
    """Check a turn in all divisions. `is_cut`: the model's text was cut off."""
    written, expected = turn
    for parts in ways_to_cut(written):
        assert read(parsers(), parts, is_cut=is_cut) == joined(expected), parts


def calls_of(pieces: Iterable[Piece]) -> list[tuple[str, Any]]:
    """Return the calls in joined pieces, with their arguments parsed."""
    calls: list[tuple[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, CallStarted):
            calls.append((piece.name, None))
        elif isinstance(piece, CallArguments):
            calls[-1] = (calls[-1][0], json.loads(piece.text))
    return calls
