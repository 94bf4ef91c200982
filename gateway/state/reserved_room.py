"""The reserved space on the data directory's file system: a ballast file.

A write that finds no room gets most of the ballast. The rest is reserved for the next start and the
end of this run, whose files need room too. The ballast is filled again as soon as there is room for
all of it. SQLite's files reserve room themselves (`sqlite.database`), so most writes do not need
the ballast.

The ballast's bytes are random, because a file system that compresses would reserve no space for
zeros.
"""

import asyncio
import errno
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from gateway.state.faults import Fault, no_room

BALLAST_FILE = "ballast"
BALLAST_BYTES = 4 << 20
START_BYTES = 1 << 20  # bytes of the ballast that are reserved for a start and an end
LOW_BYTES = 2 << 20  # number of free bytes below which the disk counts as full

_CHUNK = 64 << 10
_LOG = logging.getLogger(__name__)


class ReservedRoom:
    """The ballast file of a data directory. Several processes may share it. Thread-safe."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir
        self._path = data_dir / BALLAST_FILE
        self.fault: Fault | None = None  # `disk_full` if the latest look found a full file system

    async def check(self) -> None:
        await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Measure free disk space like `check`, waiting for the disk."""
        free = self._free()
        self.fault = no_room("the disk of the data directory") if free < LOW_BYTES else None
        if free >= LOW_BYTES + BALLAST_BYTES - self._size():
            self.fill()

    def give_up(self, *, keep: int = START_BYTES) -> bool:
        """Shrink the ballast for a write that found no space; return False if none is left."""
        if self._size() <= keep:
            return False
        with suppress(OSError):
            os.truncate(self._path, keep)
            self.fault = no_room("the disk of the data directory")
            _LOG.error("the disk of the data directory is full: reserved room is given up")
            return True
        return False

    def end(self) -> None:
        """Release the whole ballast for the last writes of a run, if the disk is full."""
        if self._free() < LOW_BYTES:
            self.give_up(keep=0)

    def fill(self) -> None:
        """Grow the ballast into the free space, up to its full size."""
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # fails if another process fills the ballast
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _fill(descriptor)
            finally:
                os.close(descriptor)

    def lacks_room(self) -> bool:
        """Return whether a small file cannot be written, on a full disk or over a quota."""
        probe = self._directory / f".room.{os.getpid()}"
        try:
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                return os.write(descriptor, b"x" * 4096) < 4096
            finally:
                os.close(descriptor)
        except OSError as error:
            return error.errno in (errno.ENOSPC, errno.EDQUOT)
        finally:
            with suppress(OSError):
                probe.unlink()

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def _free(self) -> int:
        try:
            found = os.statvfs(self._directory)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize


def _fill(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    try:
        while size < BALLAST_BYTES:
            size += os.pwrite(descriptor, os.urandom(min(_CHUNK, BALLAST_BYTES - size)), size)
    finally:
        os.fsync(descriptor)
