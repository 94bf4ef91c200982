"""A file system that only counts bytes: those of one file, and those of other files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.disk.file.head_room import DiskUse
from storage.disk.file.lmdb_file import allocated_bytes


@dataclass
class CountedDisk:
    """A file system of `size` bytes, used by the file and by other files."""

    size: int
    file: int | Path = 0  # bytes, or the directory of a real file
    others: int = 0

    def use(self, _: Path) -> DiskUse:
        """Return the disk's use, as `statvfs` reports it."""
        return DiskUse(self.size, max(self.left, 0))

    @property
    def taken(self) -> int:
        """Return the number of the file's bytes."""
        return self.file if isinstance(self.file, int) else allocated_bytes(self.file)

    @property
    def left(self) -> int:
        """Return the number of free bytes."""
        return self.size - self.taken - self.others
