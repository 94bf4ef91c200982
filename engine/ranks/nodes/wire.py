"""What goes between rank 0's machine and another one, over TCP, encrypted for holders of one key.

    node       Join -->    RankReport ...         RankEnded -->
    relay          <-- Run     RankCommand ...   Beat       <-- Refused, if it is to run nothing

What ranks are told and report is passed on as it is. Frames are numbered: ZMQ connects again after
a break, and what was on the way then is lost. One that is missing ends everything.

Knows: messages and their numbers. Does not know: sockets, or who runs what (`relay`, `session`).
"""

from __future__ import annotations

import struct
from importlib.metadata import version
from typing import Annotated, TypeVar

import msgspec

from engine.ranks.messages import Start
from storage.disk.wire import MAX_MESSAGE_BYTES

MAX_FRAME_BYTES = 64 << 20  # a step of many long prompts
# What a node sends. ZMQ takes so much of anybody, before it looks whether they hold the key.
MAX_REPORT_BYTES = MAX_MESSAGE_BYTES + 1024
MOST_TEXT = 1024  # characters
MOST_VERSIONS = 256  # likewise
_PRINTABLE = r"^[ -~]*\Z"  # it ends in a log
_NUMBER = struct.Struct(">Q")


class LinkBroken(Exception):
    """The other machine is gone, or something of what it sent is missing or no message."""


class NodeMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all."""


class Join(NodeMessage, frozen=True):
    """This machine is there, as this node, and runs these versions."""

    node: int
    versions: Annotated[str, msgspec.Meta(max_length=MOST_VERSIONS, pattern=_PRINTABLE)]


class RankReport(NodeMessage, frozen=True):
    """What a rank reports to rank 0 (`engine.ranks.messages.Report`)."""

    rank: int
    content: bytes


class RankEnded(NodeMessage, frozen=True):
    """The process of a rank is gone."""

    rank: int
    status: int


class Refused(NodeMessage, frozen=True):
    """This node runs nothing; `is_final`: nor would it if it asked again."""

    text: Annotated[str, msgspec.Meta(max_length=MOST_TEXT, pattern=_PRINTABLE)]
    is_final: bool


class Run(NodeMessage, frozen=True):
    """The ranks to start, each by its first message; the node has rings of its own for them."""

    starts: tuple[Start, ...]


class RankCommand(NodeMessage, frozen=True):
    """What all ranks are told (`engine.ranks.messages.Command`)."""

    content: bytes


class Beat(NodeMessage, frozen=True):
    """Are you there? Sending it fails where the node is not."""


FromNode = Join | RankReport | RankEnded
ToNode = Refused | Run | RankCommand | Beat
M = TypeVar("M", FromNode, ToNode)

_ENCODER = msgspec.msgpack.Encoder()
FROM_NODE: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
TO_NODE: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)


class Numbered:
    """The frames of one connection, both ways."""

    def __init__(self) -> None:
        self._sent = 0
        self._taken = 0

    def frame(self, message: NodeMessage) -> bytes:
        """The next one to be sent."""
        self._sent += 1
        return _NUMBER.pack(self._sent) + _ENCODER.encode(message)

    def message(self, frame: bytes, decoder: msgspec.msgpack.Decoder[M]) -> M:
        """What has come. Raises LinkBroken."""
        if len(frame) < _NUMBER.size:
            raise LinkBroken("a frame without a number")
        [number] = _NUMBER.unpack_from(frame)
        self._taken += 1
        if number != self._taken:
            raise LinkBroken(f"frame {number} came in place of {self._taken}")
        try:
            return decoder.decode(memoryview(frame)[_NUMBER.size :])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LinkBroken(f"a frame that is no message: {error}") from error


def versions() -> str:
    """What must be the same on all machines."""
    return f"ratoon {version('ratoon')}, torch {version('torch')}"
