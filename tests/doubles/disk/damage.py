"""Damage to files, and file systems without free space."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096


def overwrite(path: Path, seed: int, length: int = 100) -> None:
    """Overwrite the bytes right after the first page with random bytes."""
    with path.open("r+b") as file:
        file.seek(PAGE)
        file.write(random.Random(seed).randbytes(length))


@contextmanager
def small_disk(directory: Path, size: str = "20m") -> Iterator[Path]:
    """Mount a small file system at `directory`. Raises PermissionError if that is not allowed."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(directory)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PermissionError("there is no `mount`") from error
    if done.returncode:
        raise PermissionError(done.stderr.strip())
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill_up(directory: Path) -> Path:
    """Fill the file system to the last byte, and return the file that fills it."""
    path = directory / "fill"
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 16, PAGE, 1):
            try:
                while True:
                    file.write(os.urandom(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return path
