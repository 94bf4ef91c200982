"""The flushes done on a directory's records: ids in a file beside them.

A flush that is not here is done again at the next start, which costs hits and nothing else. So the
file may be lost or damaged, and the oldest ids may go.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from storage.disk.file.private_file import read_private, write_private

MOST = 65_536  # ids
_NAME = "flushes"


def read_done(directory: Path) -> list[str]:
    """Read the ids, the oldest first; none where the file is gone or damaged. Raises OSError."""
    content = read_private(directory / _NAME)
    if content is None:
        return []
    try:
        return msgspec.json.decode(content, type=list[str])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []


def add_done(directory: Path, flushes: Iterable[str]) -> None:
    """Add ids; they are on disk when this returns. Raises OSError."""
    kept = list(dict.fromkeys((*read_done(directory), *flushes)))[-MOST:]
    write_private(directory / _NAME, msgspec.json.encode(kept))
