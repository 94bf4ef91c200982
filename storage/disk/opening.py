"""Opens the file of records in a directory, whatever state the directory is in.

    DIRECTORY/lock                  held by the one process that may touch the rest
    DIRECTORY/secret                authenticates records; DIRECTORY/keys with encryption
    DIRECTORY/blocks/               the file
    DIRECTORY/blocks.quarantine/    the last one that was set aside

A file whose records have another origin (fingerprint, block size, encryption) is removed. One that
cannot be opened, that ends before its last page, or at which a process died, is set aside. In both
cases the tier starts empty.

Knows: the names of files, and the order of steps. Does not know: how LMDB works, or what is in a
record.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from storage.disk.data_keys import DataKeys, DirectoryKey, Keys
from storage.disk.lmdb_file import DATA_NAME, LmdbFile
from storage.disk.private_file import sync_directory
from storage.disk.wire import Open
from storage.errors import DiskInUse, FileDamaged

_LAYOUT = 1  # of tables and records; raised whenever either changes
_LOCK_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that belongs to this process for as long as `lock` is open."""

    file: LmdbFile
    keys: Keys
    lock: int  # descriptor
    set_aside: bool  # another file was there and is in quarantine now


def open_directory(wish: Open) -> OpenedFile:
    """Open the file of `wish`; the one that is there is set aside first unless `wish.keep`.

    Raises DiskInUse, OSError, or FileTrouble where not even a new file can be opened.
    """
    directory = Path(wish.directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = take_lock(directory / "lock", wish.lock_wait_s)
    blocks = directory / "blocks"
    set_aside = not wish.keep and set_apart(blocks)
    keys = keys_of(directory, encrypt=wish.encrypt)
    try:
        file = _open_file(blocks, wish)
    except FileDamaged:
        set_aside = set_apart(blocks)
        file = _open_file(blocks, wish)
    return OpenedFile(file, keys, lock, set_aside)


def take_lock(path: Path, wait_s: float) -> int:
    """Lock the directory; returns the lock's descriptor. Raises DiskInUse after `wait_s`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            if time.monotonic() >= give_up:
                os.close(descriptor)
                raise DiskInUse(f"another engine uses {path.parent}") from held
            time.sleep(_LOCK_PAUSE_S)
        else:
            return descriptor


def set_apart(blocks: Path) -> bool:
    """Move the file, if there is one, to quarantine, which holds one at a time; whether it was."""
    if not blocks.exists():
        return False
    remove_quarantine(blocks.parent)
    blocks.rename(quarantine_of(blocks.parent))
    sync_directory(blocks.parent)
    return True


def quarantine_of(directory: Path) -> Path:
    """The path of the file that was set aside last."""
    return directory / "blocks.quarantine"


def remove_quarantine(directory: Path) -> None:
    """Remove the file that was set aside, if there is one."""
    shutil.rmtree(quarantine_of(directory), ignore_errors=True)


def keys_of(directory: Path, *, encrypt: bool) -> Keys:
    """What the records of `directory` are sealed with."""
    if encrypt:
        return DataKeys(directory / "keys")
    return DirectoryKey.load(directory / "secret")


def _open_file(blocks: Path, wish: Open) -> LmdbFile:
    """The file, of this origin: an older one is removed, as is one larger than it may be."""
    data = blocks / DATA_NAME
    if data.exists() and data.stat().st_size > wish.max_bytes:
        shutil.rmtree(blocks)
    file = LmdbFile(blocks, wish.max_bytes)
    origin = _origin(wish)
    if file.origin() not in (None, origin):
        file.close()
        shutil.rmtree(blocks)
        file = LmdbFile(blocks, wish.max_bytes)
    if file.origin() is None:
        file.note_origin(origin)
    return file


def _origin(wish: Open) -> bytes:
    parts = f"{_LAYOUT}:{wish.block_bytes}:{wish.encrypt}:".encode()
    return hashlib.sha256(parts + wish.fingerprint).digest()
