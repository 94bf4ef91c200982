"""The ids of the flushes already applied to a directory's records, in a file beside them.

A flush that is not listed is repeated at the next start, which only lowers the hit rate. So the
file may be lost or damaged, and the oldest ids may be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from storage.disk.file.private_file import read_private, write_private

MOST = 65_536
_NAME = "flushes"


def read_done(directory: Path) -> list[str]:
    """Read the flush ids, oldest first: [] if the file is gone or damaged. Raises OSError."""
    content = read_private(directory / _NAME)
    if content is None:
        return []
    try:
        return msgspec.json.decode(content, type=list[str])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []


def add_done(directory: Path, flushes: Iterable[str]) -> None:
    """Add flush ids. They are on disk when the call returns. Raises OSError."""
    kept = list(dict.fromkeys((*read_done(directory), *flushes)))[-MOST:]
    write_private(directory / _NAME, msgspec.json.encode(kept))
