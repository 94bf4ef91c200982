"""The head-room that the disk tier leaves to other users of its file system.

The head-room is a share of the file system, or of the file's bound where that is smaller: 15 % of a
disk of terabytes would be more than the file. The file stops growing while a third more than the
head-room is free, so that what others write next does not use up the head-room at once:

    left of the file system      what the disk tier does
    head-room * 4/3 and more     grows, by as much as keeps this
    head-room and more           writes into the room that its file has
    less                         does not write; reads and erases
    head-room / 2 and less       removes its file: a cache can be computed again

The file system's own count (`statvfs`) is used, so files of others count too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_STOPS_GROWING = 4 / 3  # times the head-room: with less free space the file stops growing
_GIVES_UP = 1 / 2  # times the head-room: with less free space the file is given up
_STEPS = 256  # bounds are multiples of 1/256, so that they seldom change while others write


class DiskUse(NamedTuple):
    """Size of a disk and how much of it this process may still take, in bytes."""

    size: int
    left: int


def disk_use(directory: Path) -> DiskUse:
    """Return the use of the disk that holds `directory`. Raises OSError."""
    disk = os.statvfs(directory)
    return DiskUse(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


def slots_in(num_bytes: int, record_bytes: int, high_water: float) -> int:
    """Count the records below a file's high-water mark, with space left for one write."""
    return max(int(num_bytes * high_water) // record_bytes - 2, 0)


@dataclass(frozen=True, slots=True)
class HeadRoom:
    """Space kept free on the disk of `directory`, for a file of at most `max_bytes`."""

    directory: Path
    max_bytes: int
    high_water: float  # 1 minus the head-room's share
    disk_use: Callable[[Path], DiskUse] = disk_use

    def bound(self, allocated: int, *, in_need: bool = False) -> int:
        """Return the bytes up to which a file may grow that has `allocated` bytes on the disk.

        `in_need`: erasing takes pages before it frees some, so it may use the free head-room.
        Raises OSError.
        """
        disk = self.disk_use(self.directory)
        head_room = self._head_room(disk)
        kept = head_room * _STOPS_GROWING
        if in_need:
            kept = head_room if disk.left > head_room else head_room * _GIVES_UP
        step = max(self._share_of(disk) // _STEPS, 1)
        growth = max(int(disk.left - kept), 0)
        whole = (allocated + growth) // step * step
        return min(self.max_bytes, max(whole, allocated))

    def is_kept(self) -> bool:
        """Return whether the head-room is free. Raises OSError."""
        disk = self.disk_use(self.directory)
        return disk.left >= self._head_room(disk)

    def is_needed_by_others(self) -> bool:
        """Return whether so little is free that the file should be removed. Raises OSError."""
        disk = self.disk_use(self.directory)
        return disk.left <= self._head_room(disk) * _GIVES_UP

    def _head_room(self, disk: DiskUse) -> int:
        return round((1 - self.high_water) * self._share_of(disk))

    def _share_of(self, disk: DiskUse) -> int:
        return min(disk.size, self.max_bytes)
