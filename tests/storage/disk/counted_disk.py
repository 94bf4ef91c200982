"""A file system that is only counted: one file, and others.

Knows: bytes. Does not know: what anybody writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.disk.file.head_room import DiskUse
from storage.disk.file.lmdb_file import allocated_bytes


@dataclass
class CountedDisk:
    """`size` bytes, of which the file has some and others have some."""

    size: int
    file: int | Path = 0  # bytes, or the directory of a real one
    others: int = 0

    def use(self, _: Path) -> DiskUse:
        """Return what `statvfs` would say of the file system."""
        return DiskUse(self.size, max(self.left, 0))

    @property
    def taken(self) -> int:
        """Bytes that the file has."""
        return self.file if isinstance(self.file, int) else allocated_bytes(self.file)

    @property
    def left(self) -> int:
        """Bytes that nobody has."""
        return self.size - self.taken - self.others
