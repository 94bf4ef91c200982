"""The messages between the engine and the disk's process, and their socket.

    engine  --- Open, Write, Read, Erase, Forget, Note, Scan, CloseFile -->  disk
            <-- Opened | WriteRefused, DiskEnded, ScannedSlots, Forgot, FileStats --

Blocks themselves are not sent. Blocks lie in memory that both processes map, and a message names
their places. Every message is bounded and typed. A message that cannot be decoded ends the
connection.
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
ERASE_SLOTS = 8192
NOTED_AT_ONCE = 1024
_SOCKET_BYTES = 1 << 20


class DiskOutcome(Enum):
    """The outcomes of a write or a read."""

    DONE = "done"
    FAILED = "failed"  # no read or write happened; a record in the slot is still there
    LOST = "lost"  # the slot did not hold the requested record and is being erased


class Segment(Enum):
    """The memory segments that may hold a block."""

    HOST = "host"
    STAGING = "staging"


class OpenRefusal(Enum):
    """The reasons why a disk process could not open its file or gave it up."""

    IN_USE = "in use"
    UNUSABLE = "unusable"
    DISK_FULL = "disk full"  # no room to open the file, or the file was removed to make room


class DiskMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The base of all messages."""


class SharedSegment(msgspec.Struct, frozen=True, array_like=True):
    """Memory that the process maps: an inherited descriptor, and its number of blocks."""

    fd: int
    num_blocks: int


class Open(DiskMessage, frozen=True):
    """The first message: the file to open, and its bounds."""

    config: DiskConfig
    num_slots: int | None  # number of the file's slots; None: as many as fit its maximum size
    keep: bool  # whether to use an existing file; False: it is moved to quarantine
    staging: SharedSegment
    host: SharedSegment | None


class Write(DiskMessage, frozen=True):
    """A request to write the block at `place` of `segment` into `slot`."""

    ticket: int
    slot: int
    segment: Segment
    place: int
    record: BlockRecord


class Read(DiskMessage, frozen=True):
    """A request to read `slot` to staging buffer `place`, if `slot` has the block of `record`."""

    ticket: int
    slot: int
    place: int
    record: BlockRecord


class Erase(DiskMessage, frozen=True):
    """A request to empty these slots."""

    slots: list[int]


class Forget(DiskMessage, frozen=True):
    """A request to make all records of an owner unreadable."""

    owner: str


class Note(DiskMessage, frozen=True):
    """A request to record these flushes as done, once all earlier erasures are done."""

    flushes: list[str]


class Scan(DiskMessage, frozen=True):
    """A request for the list of records from slot `first` on."""

    first: int


class CloseFile(DiskMessage, frozen=True):
    """A request to finish the pending work and end."""


class Opened(DiskMessage, frozen=True):
    """The report that the file is open, with the number of its slots.

    `set_aside` means that an unusable file was moved to quarantine. `given_up` means that a file
    was removed because other programs need its room.
    """

    set_aside: bool
    given_up: bool
    num_slots: int


class WriteRefused(DiskMessage, frozen=True):
    """The refusal of a write, because no file is open or the process is ending."""

    why: OpenRefusal
    text: str


class DiskEnded(DiskMessage, frozen=True):
    """The report that a write or a read has ended, with its outcome."""

    ticket: int
    outcome: DiskOutcome


class ScannedSlots(DiskMessage, frozen=True):
    """Records in order of slot. `next_slot` is the next slot to scan, or None at the end."""

    entries: list[tuple[int, BlockRecord]]
    next_slot: int | None


class Forgot(DiskMessage, frozen=True):
    """The report that the owner's records are unreadable."""

    owner: str


class FileStats(DiskMessage, frozen=True):
    """Counts of the file's records, and of reads lost and writes refused since its opening.

    `disk_full` means that nothing is written, because too little of the file system is free.
    """

    records: int
    bytes: int
    lost: int
    refused: int
    disk_full: bool


Command = Open | Write | Read | Erase | Forget | Note | Scan | CloseFile
Reply = Opened | WriteRefused | DiskEnded | ScannedSlots | Forgot | FileStats


class WireBroken(StorageError):
    """A socket whose other end was closed or has sent an invalid message."""


class Channel:
    """One end of a SOCK_SEQPACKET socket. One thread at a time may send, and one may receive."""

    def __init__(self, end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.socket = end
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)
        self._buffer = bytearray(MAX_MESSAGE_BYTES + 1)

    def encode(self, message: DiskMessage) -> bytes:
        """Encode a message. Raises WireBroken if it is too large."""
        content = self._encoder.encode(message)
        if len(content) > MAX_MESSAGE_BYTES:
            raise WireBroken(f"a {type(message).__name__} of {len(content)} bytes")
        return content

    def send(self, content: bytes, flags: int = 0) -> bool:
        """Send a message. Raises WireBroken.

        Returns False if MSG_DONTWAIT finds a full socket.
        """
        try:
            self.socket.send(content, flags | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise WireBroken("the other side is gone") from error
        return True

    def receive(self, flags: int = 0) -> memoryview | None:
        """Receive a message as a view that is valid until the next call. Raises WireBroken.

        Returns None if no message comes in time.
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
    """Decode a command (COMMANDS) or a reply (REPLIES). Raises WireBroken if it is invalid."""
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise WireBroken(str(error)) from error
