"""The content of an assistant's turn, to compare a generated turn with a client's turn.

Spaces around texts and the order of a call's arguments do not count.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.prompts.chats.messages import Message, Reasoning, Text, ToolCall
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, ReasoningPiece, TextPiece

_SAFE = 2.0**53  # the number above which floats skip whole numbers


class Said(Struct, frozen=True):
    """The content of a turn. Turns of equal content are equal."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, str], ...]  # names, and arguments as `canonical` spells them
    order: tuple[str, ...]  # kinds of the turn's parts in order; equal neighbours count as one


def without_text(said: Said) -> Said:
    """Return the content of a turn with calls, without its text; of any other turn, all content."""
    if not (said.text and said.calls):
        return said
    others = (kind for kind in said.order if kind != "text")
    return replace(said, text="", order=tuple(kind for kind, _ in groupby(others)))


def said_in(pieces: Iterable[Piece]) -> Said | None:
    """Read the content from pieces, or return None if a call was cut off."""
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    order: list[str] = []
    for piece in pieces:
        match piece:
            case ReasoningPiece(text):
                thoughts.append(text)
            case TextPiece(text):
                texts.append(text)
            case CallStarted(name):
                calls.append((name, []))
            case CallArguments(text):
                calls[-1][1].append(text)
        _note(piece, order)
    try:
        spelled = tuple((name, canonical(_object("".join(some)))) for name, some in calls)
    except ValueError:
        return None
    return Said("".join(thoughts).strip(), "".join(texts).strip(), spelled, tuple(order))


def said_by(message: Message) -> Said | None:
    """Read the content of an assistant's message; return None for too deeply nested arguments."""
    reasoning = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
    text = "".join(part.text for part in message.parts if isinstance(part, Text))
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    try:
        spelled = tuple((call.name, canonical(call.arguments)) for call in calls)
    except ValueError:
        return None
    kinds = {"reasoning": reasoning.strip(), "text": text.strip(), "call": calls}
    order = tuple(kind for kind, given in kinds.items() if given)
    return Said(reasoning.strip(), text.strip(), spelled, order)


def canonical(arguments: dict[str, Any]) -> str:
    """Spell JSON so that equal objects get equal texts; raise ValueError for deep nesting."""
    try:
        return json.dumps(_plain(arguments), sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _note(piece: Piece, order: list[str]) -> None:
    match piece:
        case ReasoningPiece(text) | TextPiece(text):
            kind = "reasoning" if isinstance(piece, ReasoningPiece) else "text"
            is_blank = not text.strip()
        case _:
            kind, is_blank = "call", False
    if not is_blank and order[-1:] != [kind]:
        order.append(kind)


def _object(spelled: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(spelled, type=dict[str, Any])
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _plain(value: Any) -> Any:
    """Convert whole floats in `value` to integers, since JavaScript has one type of number."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and abs(value) < _SAFE and value == int(value):
        return int(value)
    return value
