"""Small files that only their owner may read, and that are written atomically."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def read_private(path: Path) -> bytes | None:
    """Read all bytes of `path`, or return None if there is no such file. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write_private(path: Path, content: bytes) -> None:
    """Write `path` atomically, so that readers find the old or the new content after a crash.

    The content is on disk when this returns. Raises OSError, and keeps the old content then.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync the creation, renaming and removal of files in `directory`. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
