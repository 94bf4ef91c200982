"""When to refuse writes: before the file reaches its bound, or its disk is full.

Deleting needs room too, since LMDB copies the pages that it changes. So writes are refused while
there is some left: a file that is completely full can only be thrown away.

Knows: bytes. Does not know: what they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from storage.disk.lmdb_file import FileUse
from storage.errors import FileFull


class DiskUse(NamedTuple):
    """How large a disk is and how much of it this process may still take, in bytes."""

    size: int
    left: int


def disk_use(directory: Path) -> DiskUse:
    """The use of the disk that `directory` lies on. Raises OSError."""
    disk = os.statvfs(directory)
    return DiskUse(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


@dataclass(frozen=True, slots=True)
class Room:
    """How many blocks there may be, and how full their file and its disk may get."""

    directory: Path
    num_slots: int
    block_bytes: int
    record_bytes: int
    high_water: float
    disk_use: Callable[[Path], DiskUse] = disk_use

    def require(self, num_blocks: int, use: FileUse) -> None:
        """Raise FileFull where `num_blocks` more blocks would make the file grow too far."""
        need = num_blocks * self.record_bytes
        # Slots take high_water of the file. Of the rest, half is for overwriting them, which needs
        # new pages before it frees the old ones, and half for erasing in time of need.
        spare = int(use.bound * (1 - self.high_water) / 2)
        if use.used + need + spare > use.bound:
            raise FileFull(f"{use.used} of {use.bound} bytes are in use")
        if use.reusable >= 2 * need:  # what the last change freed is free for the one after next
            return
        disk = self.disk_use(self.directory)
        # Of the disk or the file, whichever is smaller: 15 % of a large disk is more than a file.
        if disk.left - need < (1 - self.high_water) * min(disk.size, use.bound):
            raise FileFull(f"the disk of {self.directory} has {disk.left} bytes left")
