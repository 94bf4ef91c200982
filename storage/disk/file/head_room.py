"""The head-room that the disk tier leaves to other users of its file system.

The head-room is a share of the file system, or of the file's bound if the bound is smaller. The
file stops growing while a third more than the head-room is still free. So the next writes of other
users do not use up the head-room at once:

    free in the file system      what the disk tier does
    head-room * 4/3 and more     lets the file grow, and leaves this much free
    head-room and more           writes only into space that the file has
    less                         does not write; reads and erases
    head-room / 2 and less       removes the file: a cache can be computed again

The free space is the file system's own count (`statvfs`), so other users' files count too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_STOPS_GROWING = 4 / 3  # free space below which the file stops growing, divided by the head-room
_GIVES_UP = 1 / 2  # free space below which the file is removed, divided by the head-room
_STEPS = 256  # bounds are multiples of 1/256, so that they seldom change


class DiskUse(NamedTuple):
    """The size of a disk, and the bytes that this process may still take."""

    size: int
    left: int


def disk_use(directory: Path) -> DiskUse:
    """Return the use of the disk that holds `directory`. Raises OSError."""
    disk = os.statvfs(directory)
    return DiskUse(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


def slots_in(num_bytes: int, record_bytes: int, high_water: float) -> int:
    """Count the records that fill a file to its high-water level, less the space for one write."""
    return max(int(num_bytes * high_water) // record_bytes - 2, 0)


@dataclass(frozen=True, slots=True)
class HeadRoom:
    """The space kept free on the disk of `directory`, for a file of at most `max_bytes`."""

    directory: Path
    max_bytes: int
    high_water: float  # share of the space that may be used: 1 minus the head-room's share
    disk_use: Callable[[Path], DiskUse] = disk_use

    def bound(self, allocated: int, *, in_need: bool = False) -> int:
        """Return the maximum size in bytes of a file that now takes `allocated` bytes.

        With `in_need`, the file may use the head-room, since erasing takes pages before it frees
        pages. Raises OSError.
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
        """Return whether the disk has at least the head-room free. Raises OSError."""
        disk = self.disk_use(self.directory)
        return disk.left >= self._head_room(disk)

    def is_needed_by_others(self) -> bool:
        """Return whether the file must be removed for lack of free space. Raises OSError."""
        disk = self.disk_use(self.directory)
        return disk.left <= self._head_room(disk) * _GIVES_UP

    def _head_room(self, disk: DiskUse) -> int:
        return round((1 - self.high_water) * self._share_of(disk))

    def _share_of(self, disk: DiskUse) -> int:
        return min(disk.size, self.max_bytes)
