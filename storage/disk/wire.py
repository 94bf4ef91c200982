"""The messages between the engine and the disk's process, and the socket they go through.

    engine  --- Open, Write, Read, Erase, Forget, Scan, Close -->  disk
            <-- Opened | Refused, Ended, Scanned, Forgot, FileStats --

Blocks themselves are not sent: they lie in memory that both processes map, and a message names the
place. Every message is bounded and typed; one that does not decode ends the connection.

Knows: bytes and types. Does not know: what a side does with a message.
"""

from __future__ import annotations

import socket
from enum import Enum

import msgspec

from storage.errors import StorageError
from storage.move import Record

MAX_MESSAGE_BYTES = 128 << 10
ERASE_SLOTS = 8192  # in one message
_SOCKET_BYTES = 1 << 20


class Outcome(Enum):
    """How a write or a read ended."""

    DONE = "done"
    FAILED = "failed"  # nothing was read or written; a record that was there still is
    LOST = "lost"  # the slot did not hold the record asked for; it is being erased


class Segment(Enum):
    """Which memory a block lies in."""

    HOST = "host"
    STAGING = "staging"


class Refusal(Enum):
    """Why a process does not open its file."""

    IN_USE = "in use"
    UNUSABLE = "unusable"


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all."""


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """Memory to be mapped: its descriptor, inherited, and how many blocks it has."""

    fd: int
    num_blocks: int


class Open(Message, frozen=True):
    """The first message: which file, and what it may take."""

    directory: str
    max_bytes: int
    num_slots: int
    block_bytes: int
    record_bytes: int
    fingerprint: bytes
    encrypt: bool
    high_water: float
    lock_wait_s: float
    keep: bool  # False: the file that is there is set aside
    staging: Memory
    host: Memory | None


class Write(Message, frozen=True):
    """Put the block at `place` of `segment` into `slot`."""

    ticket: int
    slot: int
    segment: Segment
    place: int
    record: Record


class Read(Message, frozen=True):
    """Copy the block of `slot` to staging buffer `place`, if it is the block of `record`."""

    ticket: int
    slot: int
    place: int
    record: Record


class Erase(Message, frozen=True):
    """Empty these slots."""

    slots: list[int]


class Forget(Message, frozen=True):
    """Make all records of an owner unreadable."""

    owner: str


class Scan(Message, frozen=True):
    """Which records are there, in slots from `first` on?"""

    first: int


class Close(Message, frozen=True):
    """Finish what was begun and end."""


class Opened(Message, frozen=True):
    """The file is open. `set_aside`: another one was there and is in quarantine now."""

    set_aside: bool


class Refused(Message, frozen=True):
    """The file cannot be opened."""

    why: Refusal
    text: str


class Ended(Message, frozen=True):
    """A write or a read has ended."""

    ticket: int
    outcome: Outcome


class Scanned(Message, frozen=True):
    """Records, in order of slot; `next_slot` is where to go on, None at the end."""

    entries: list[tuple[int, Record]]
    next_slot: int | None


class Forgot(Message, frozen=True):
    """The owner's records are unreadable."""

    owner: str


class FileStats(Message, frozen=True):
    """What the file holds, and the reads lost and writes refused since it was opened."""

    records: int
    bytes: int
    lost: int
    refused: int


Command = Open | Write | Read | Erase | Forget | Scan | Close
Reply = Opened | Refused | Ended | Scanned | Forgot | FileStats


class WireBroken(StorageError):
    """The other side is gone, or has sent an invalid message."""


class Channel:
    """One end of a SOCK_SEQPACKET socket. One thread at a time may send, and one receive."""

    def __init__(self, end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.socket = end
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(MAX_MESSAGE_BYTES + 1)

    def encode(self, message: Message) -> bytes:
        """Raise WireBroken when the message is larger than any may be."""
        content = self._encoder.encode(message)
        if len(content) > MAX_MESSAGE_BYTES:
            raise WireBroken(f"a {type(message).__name__} of {len(content)} bytes")
        return content

    def send(self, content: bytes, flags: int = 0) -> bool:
        """Send; whether the socket had room: False only with MSG_DONTWAIT. Raises WireBroken."""
        try:
            self.socket.send(content, flags | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise WireBroken("the other side is gone") from error
        return True

    def receive(self, flags: int = 0) -> memoryview | None:
        """One message, a view valid until the next call; None with MSG_DONTWAIT or a timeout.

        Raises WireBroken.
        """
        try:
            size = self.socket.recv_into(self._buffer, 0, flags)
        except (BlockingIOError, TimeoutError):
            return None
        except OSError as error:
            raise WireBroken("the other side is gone") from error
        if size == 0 or size > MAX_MESSAGE_BYTES:
            raise WireBroken("the other side is gone" if size == 0 else "a message too large")
        return memoryview(self._buffer)[:size]


# ValueError: text that is not UTF-8 raises UnicodeDecodeError.
_NO_MESSAGE = (msgspec.MsgspecError, ValueError, RecursionError)
_COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def decode_command(content: memoryview) -> Command:
    """A message of the engine. Raises WireBroken."""
    try:
        return _COMMANDS.decode(content)
    except _NO_MESSAGE as error:
        raise WireBroken(str(error)) from error


def decode_reply(content: memoryview) -> Reply:
    """A message of the disk's process. Raises WireBroken."""
    try:
        return _REPLIES.decode(content)
    except _NO_MESSAGE as error:
        raise WireBroken(str(error)) from error
