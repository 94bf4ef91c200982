"""The pieces of a model's turn, in the order in which they were written.

A piece has no id or number of a tool call. Each API's dialect numbers the calls.
"""

from msgspec import Struct


class TextPiece(Struct, frozen=True):
    """A piece of the answer's text."""

    text: str


class ReasoningPiece(Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class CallStarted(Struct, frozen=True):
    """The beginning of a call. Its whole name is among the request's tools."""

    name: str


class CallArguments(Struct, frozen=True):
    """The next characters of the arguments of the latest call.

    A call's joined arguments are one JSON object, unless the answer was cut off by length.
    """

    text: str


Piece = TextPiece | ReasoningPiece | CallStarted | CallArguments
