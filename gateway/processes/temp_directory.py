"""A process's temporary directory, which the next start removes if the process was killed.

The directory is locked (flock) as long as its process lives. The kernel releases the lock however
the process ends, so a directory with a free lock was left behind. Only known files are removed from
it. The directory itself is removed if nothing else is in it.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

_TRIES = 8
_TAIL = re.compile(r"[a-z0-9_]{8}")  # pattern of the endings that `tempfile` gives to names


def has_room(place: Path, least_bytes: int) -> bool:
    """Return whether files can be made in `place`, and `least_bytes` bytes are free there."""
    try:
        disk = os.statvfs(place)
    except OSError:
        return False
    return os.access(place, os.W_OK | os.X_OK) and disk.f_bavail * disk.f_frsize >= least_bytes


@contextmanager
def temp_directory(prefix: str, holds: str, within: Path | None = None) -> Iterator[Path]:
    """Make a directory that is open only to its owner (0700). Remove it at the end.

    First, old directories of the same `prefix` are removed. Their process must be gone, and all
    their files' names must match `holds`. `within` is the system's temporary directory by default.
    A forked process that leaves the context only gives up the lock.
    """
    owner = os.getpid()
    within = within or Path(tempfile.gettempdir())
    _sweep(within, prefix, holds)
    directory, lock = _made(within, prefix)
    try:
        yield directory
    finally:
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _made(within: Path, prefix: str) -> tuple[Path, int | None]:
    """Make a directory, and a descriptor that locks it; None if directories cannot be locked."""
    for _ in range(_TRIES):
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        lock = _locked(directory)
        if lock is not None and directory.exists():
            return directory, lock
        # Another start has removed the directory, or is about to, since it was unlocked for a
        # moment.
        shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=within)), None


def _sweep(within: Path, prefix: str, holds: str) -> None:
    for directory in within.glob(f"{prefix}*"):
        if _TAIL.fullmatch(directory.name.removeprefix(prefix)):
            lock = _locked(directory)
            if lock is not None:
                # fails for another user's directory, or if another process was quicker
                with suppress(OSError):
                    _remove(directory, holds)
                os.close(lock)


def _remove(directory: Path, holds: str) -> None:
    left = list(directory.iterdir())
    if all(fnmatch(path.name, holds) and not path.is_dir() for path in left):
        for path in left:
            path.unlink()
        directory.rmdir()


def _locked(directory: Path) -> int | None:
    """Lock a directory by a descriptor; None if another process or user has it."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the process keeps the lock when it executes another program
            os.set_inheritable(descriptor, True)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
