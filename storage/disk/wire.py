"""The messages between the engine and the disk's process, and the socket they go through.

    engine  --- Open, Write, Read, Erase, Forget, Note, Scan, CloseFile -->  disk
            <-- Opened | WriteRefused, DiskEnded, ScannedSlots, Forgot, FileStats --

Blocks themselves are not sent: they lie in memory that both processes map, and a message names the
place. Every message is bounded and typed; one that does not decode ends the connection.
"""

from __future__ import annotations

import socket
from enum import Enum
from typing import TypeVar

import msgspec

from storage.disk.config import DiskConfig
from storage.errors import StorageError
from storage.move import BlockRecord

MAX_MESSAGE_BYTES = 128 << 10
ERASE_SLOTS = 8192  # in one message
NOTED_AT_ONCE = 1024  # flushes in one message
_SOCKET_BYTES = 1 << 20


class DiskOutcome(Enum):
    """Outcomes of a write or a read."""

    DONE = "done"
    FAILED = "failed"  # nothing was read or written; a record that was there still is
    LOST = "lost"  # the slot did not hold the record asked for; it is being erased


class Segment(Enum):
    """Memory segments that a block can lie in."""

    HOST = "host"
    STAGING = "staging"


class OpenRefusal(Enum):
    """Reasons why a process has no file open."""

    IN_USE = "in use"
    UNUSABLE = "unusable"
    DISK_FULL = "disk full"  # there is no room to open it, or it was removed to make room


class DiskMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all."""


class SharedSegment(msgspec.Struct, frozen=True, array_like=True):
    """Memory to be mapped: its descriptor, inherited, and how many blocks it has."""

    fd: int
    num_blocks: int


class Open(DiskMessage, frozen=True):
    """The first message: which file, and what it may take."""

    config: DiskConfig
    num_slots: int | None  # as many as there have been so far; None: as there is room for
    keep: bool  # False: the file that is there is set aside
    staging: SharedSegment
    host: SharedSegment | None


class Write(DiskMessage, frozen=True):
    """Put the block at `place` of `segment` into `slot`."""

    ticket: int
    slot: int
    segment: Segment
    place: int
    record: BlockRecord


class Read(DiskMessage, frozen=True):
    """Copy the block of `slot` to staging buffer `place`, if it is the block of `record`."""

    ticket: int
    slot: int
    place: int
    record: BlockRecord


class Erase(DiskMessage, frozen=True):
    """Empty these slots."""

    slots: list[int]


class Forget(DiskMessage, frozen=True):
    """Make all records of an owner unreadable."""

    owner: str


class Note(DiskMessage, frozen=True):
    """Remember that these flushes are done, once all that was to be erased before is."""

    flushes: list[str]


class Scan(DiskMessage, frozen=True):
    """Request to list records, in slots from `first` on."""

    first: int


class CloseFile(DiskMessage, frozen=True):
    """Finish the work under way and end."""


class Opened(DiskMessage, frozen=True):
    """The file is open, for so many slots.

    `set_aside`: another one was there that could not be used. `given_up`: one was removed, because
    others need its room.
    """

    set_aside: bool
    given_up: bool
    num_slots: int


class WriteRefused(DiskMessage, frozen=True):
    """Refusal of a write: no file is open, or none any more: the process ends."""

    why: OpenRefusal
    text: str


class DiskEnded(DiskMessage, frozen=True):
    """A write or a read has ended."""

    ticket: int
    outcome: DiskOutcome


class ScannedSlots(DiskMessage, frozen=True):
    """Records, in order of slot; `next_slot` is where to go on, None at the end."""

    entries: list[tuple[int, BlockRecord]]
    next_slot: int | None


class Forgot(DiskMessage, frozen=True):
    """The owner's records are unreadable."""

    owner: str


class FileStats(DiskMessage, frozen=True):
    """Counts of the file's records, and of reads lost and writes refused since it was opened.

    `disk_full`: nothing is written, because the file system has too little left.
    """

    records: int
    bytes: int
    lost: int
    refused: int
    disk_full: bool


Command = Open | Write | Read | Erase | Forget | Note | Scan | CloseFile
Reply = Opened | WriteRefused | DiskEnded | ScannedSlots | Forgot | FileStats


class WireBroken(StorageError):
    """The other side is gone, or has sent an invalid message."""


class Channel:
    """One end of a SOCK_SEQPACKET socket. One thread at a time may send, and one receive."""

    def __init__(self, end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.socket = end
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)  # of a Path
        self._buffer = bytearray(MAX_MESSAGE_BYTES + 1)

    def encode(self, message: DiskMessage) -> bytes:
        """Raise WireBroken when the message is larger than any may be."""
        content = self._encoder.encode(message)
        if len(content) > MAX_MESSAGE_BYTES:
            raise WireBroken(f"a {type(message).__name__} of {len(content)} bytes")
        return content

    def send(self, content: bytes, flags: int = 0) -> bool:
        """Send; return whether the socket had room: False only with MSG_DONTWAIT. Or WireBroken."""
        try:
            self.socket.send(content, flags | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise WireBroken("the other side is gone") from error
        return True

    def receive(self, flags: int = 0) -> memoryview | None:
        """Receive a message, a view valid until the next call; None with MSG_DONTWAIT or a timeout.

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


Message = TypeVar("Message", Command, Reply)
COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(
    Command, dec_hook=lambda kind, value: kind(value)
)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def decode(decoder: msgspec.msgpack.Decoder[Message], content: memoryview) -> Message:
    """Decode a message of the engine (COMMANDS) or the disk's process (REPLIES), or WireBroken."""
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise WireBroken(str(error)) from error
