"""A file system of a few megabytes, and other programs' writes to it.

It is a tmpfs, where tests may mount one.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles.waiting import wait_for

MIB = 1 << 20
_LOOK_S = 0.002


class SmallDisk:
    """A small file system, mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.least_left = 1.0  # lowest free share during `watched`
        self._others = path / "of-others"

    @property
    def size(self) -> int:
        """The size in bytes."""
        found = os.statvfs(self.path)
        return found.f_blocks * found.f_frsize

    @property
    def left(self) -> float:
        """The free share of the file system."""
        found = os.statvfs(self.path)
        return found.f_bavail / found.f_blocks

    def fill(self, left: float) -> None:
        """Write or remove other programs' files until the share `left` is free."""
        taken = self._others.stat().st_size if self._others.exists() else 0
        wanted = taken + int((self.left - left) * self.size)
        with self._others.open("ab") as file:
            file.truncate(min(wanted, taken))
            file.write(bytes(max(wanted - taken, 0)))

    def empty(self) -> None:
        """Remove the other programs' files."""
        self._others.unlink(missing_ok=True)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record the lowest free share while the context is open."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_S):
                self.least_left = min(self.least_left, self.left)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


@contextmanager
def small_disk(path: Path, num_bytes: int) -> Iterator[SmallDisk]:
    """Mount a small file system at `path`; skip the test if mounts are not allowed."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield SmallDisk(path)
    finally:
        wait_for(lambda: not subprocess.run(["umount", str(path)], check=False).returncode, 10.0)
