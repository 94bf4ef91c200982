"""A ring buffer in shared memory that carries messages from one process to several.

    memory    ...| frame | frame | free ...      at its end, continues at the start
    frame     4 bytes: the number of bytes that follow, and whether the message goes on | bytes
    filled    an eventfd of each reader: the writer adds the bytes of each frame
    freed     another eventfd of each reader: the reader adds the bytes that it has read

The counters belong to the kernel. On every kind of processor, a reader therefore sees all bytes
that were written before they were counted. A message longer than the ring is sent in several
frames. The writer waits for the slowest reader.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage.waiting import wait_for_any

RING_BYTES = 8 << 20
PATIENCE_S = 60.0  # maximum seconds to wait until a reader frees space
LOOK_S = 0.5  # seconds between two checks for free space
_HEADER = struct.Struct("<I")
_GOES_ON = 1 << 31


class RingStuck(Exception):
    """An error: a reader has stopped reading, so there is no space for the message."""


@dataclass(frozen=True, slots=True)
class ReaderEnds:
    """The file descriptors that one reader needs: the memory and two eventfds."""

    memory: int
    filled: int
    freed: int
    num_bytes: int

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """All descriptors, for a process that inherits them."""
        return self.memory, self.filled, self.freed


class RingWriter:
    """The writing end of a ring. Used by one thread only."""

    def __init__(
        self, num_readers: int, num_bytes: int = RING_BYTES, patience_s: float = PATIENCE_S
    ) -> None:
        """Allocate a ring for `num_readers`. Raises OSError."""
        self._num_bytes = num_bytes
        self._patience_s = patience_s
        self._descriptor = os.memfd_create("ratoon-ring", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, num_bytes)
        self._memory = mmap.mmap(self._descriptor, num_bytes)
        self._readers = [_Counters(_eventfd(), _eventfd()) for _ in range(num_readers)]
        self._end = 0

    @property
    def ends(self) -> list[ReaderEnds]:
        """The descriptors for each reader, open until the ring is closed."""
        return [
            ReaderEnds(self._descriptor, one.filled, one.freed, self._num_bytes)
            for one in self._readers
        ]

    def write(self, message: bytes, look: Callable[[], None] = lambda: None) -> None:
        """Write a message for every reader.

        While there is no room, call `look` repeatedly. If `look` raises an error, the readers may
        have got a part of the message. Raises RingStuck.
        """
        for frame in _frames(message, self._num_bytes // 2):
            self._wait_for_room(len(frame), look)
            _copy_in(self._memory, self._end % self._num_bytes, frame)
            self._end += len(frame)
            for reader in self._readers:
                os.eventfd_write(reader.filled, len(frame))

    def close(self) -> None:
        """Close all descriptors. Readers can still read the memory that they have mapped."""
        self._memory.close()
        os.close(self._descriptor)
        for reader in self._readers:
            os.close(reader.filled)
            os.close(reader.freed)

    def _wait_for_room(self, size: int, look: Callable[[], None]) -> None:
        for reader in self._readers:
            give_up = time.monotonic() + self._patience_s
            while self._end + size - reader.num_freed > self._num_bytes:
                left = give_up - time.monotonic()
                if left <= 0:
                    raise RingStuck(f"a rank has taken nothing for {self._patience_s:g} s")
                look()
                wait_for_any([reader.freed], min(left, LOOK_S))
                reader.num_freed += _count(reader.freed)


class RingReader:
    """A reading end of a ring. Used by one thread only."""

    def __init__(self, ends: ReaderEnds) -> None:
        """Map the memory. The caller must still close the descriptors. Raises OSError."""
        self._ends = ends
        self._memory = mmap.mmap(ends.memory, ends.num_bytes, prot=mmap.PROT_READ)
        self._position = 0
        self._filled = 0
        self._begun = b""

    def fileno(self) -> int:
        """Return a descriptor for `select`. It is readable after a write."""
        return self._ends.filled

    def read(self) -> bytes | None:
        """Read the next message without waiting, or return None while it is incomplete."""
        if not self._filled:
            self._filled += _count(self._ends.filled)
        while self._filled:
            [header] = _HEADER.unpack(self._take(_HEADER.size))
            self._begun += self._take(header & ~_GOES_ON)
            if not header & _GOES_ON:
                message, self._begun = self._begun, b""
                return message
            self._filled += _count(self._ends.filled)
        return None

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()

    def _take(self, size: int) -> bytes:
        start = self._position % self._ends.num_bytes
        first = self._memory[start : start + size]
        content = first + self._memory[: size - len(first)]
        self._position += size
        self._filled -= size
        if size:
            os.eventfd_write(self._ends.freed, size)
        return content


@dataclass(slots=True)
class _Counters:
    filled: int
    freed: int
    num_freed: int = 0


def _eventfd() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def _count(descriptor: int) -> int:
    try:
        return os.eventfd_read(descriptor)
    except BlockingIOError:
        return 0


def _frames(message: bytes, most: int) -> Iterator[bytes]:
    size = most - _HEADER.size
    starts: Sequence[int] = range(0, len(message), size) or (0,)
    for start in starts:
        piece = message[start : start + size]
        goes_on = _GOES_ON if start + size < len(message) else 0
        yield _HEADER.pack(len(piece) | goes_on) + piece


def _copy_in(memory: mmap.mmap, start: int, content: bytes) -> None:
    first = content[: len(memory) - start]
    memory[start : start + len(first)] = first
    if len(first) < len(content):
        memory[: len(content) - len(first)] = content[len(first) :]
