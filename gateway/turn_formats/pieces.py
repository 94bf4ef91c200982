"""What a model's turn is made of, in the order in which it was written.

The ids and numbers of calls are given by the layer above.
"""

from __future__ import annotations

from msgspec import Struct


class TextPiece(Struct, frozen=True):
    """Text of the answer."""

    text: str


class ReasoningPiece(Struct, frozen=True):
    """What the model thought."""

    text: str


class CallStarted(Struct, frozen=True):
    """A call begins. Its name is whole and among the request's tools."""

    name: str


class CallArguments(Struct, frozen=True):
    """The next characters of the last started call's arguments.

    All of a call's, joined, are one JSON object, unless the answer was cut off by length.
    """

    text: str


Piece = TextPiece | ReasoningPiece | CallStarted | CallArguments
