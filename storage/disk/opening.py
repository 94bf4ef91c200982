"""The opening of a directory's record file, in any state of the directory.

    DIRECTORY/lock                  held by the one process that may touch the other files
    DIRECTORY/secret                authenticates records; DIRECTORY/keys with encryption
    DIRECTORY/blocks/               the file
    DIRECTORY/blocks.quarantine/    the last file that was set aside

A file is removed if its records have another origin (fingerprint, block size, encryption), or if
other users have filled the disk. A file is set aside if it cannot be opened or lacks its last page.
The file is also set aside if the last process died while the file was open. In all these cases the
tier starts empty. The quarantined file is removed once the disk has no space for it beside a file
of full size.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from storage.disk.config import DiskConfig
from storage.disk.file.data_keys import DataKeys, DirectoryKey, KeyRing
from storage.disk.file.head_room import HeadRoom
from storage.disk.file.lmdb_file import DATA_NAME, LmdbFile, allocated_bytes
from storage.disk.file.private_file import sync_directory
from storage.disk.wire import Open
from storage.errors import DiskInUse, FileDamaged

_LAYOUT = 2
_LOCK_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that belongs to this process as long as `lock` is open."""

    file: LmdbFile
    keys: KeyRing
    lock: int
    head_room: HeadRoom
    set_aside: bool  # whether an unusable file was moved to quarantine
    given_up: bool  # whether a file was removed because other users need its room


def open_directory(wish: Open) -> OpenedFile:
    """Open the file of `wish`. Without `wish.keep`, first move the old file to quarantine.

    Raises DiskInUse, OSError, or FileTrouble if even a new file cannot be opened. DiskFull and
    FileFull mean that the disk has no room for the file.
    """
    config, directory = wish.config, wish.config.directory
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = take_lock(directory / "lock", config.lock_wait_s)
    blocks = blocks_of(directory)
    set_aside = not wish.keep and set_apart(blocks)
    head_room = HeadRoom(directory, config.max_bytes, config.high_water)
    given_up = make_room(head_room)
    keys: KeyRing
    if config.encrypt:
        keys = DataKeys(directory / "keys")
    else:
        keys = DirectoryKey.load(directory / "secret")
    try:
        file = _open_file(blocks, config, head_room)
    except FileDamaged:
        set_aside = set_apart(blocks)
        make_room(head_room)
        file = _open_file(blocks, config, head_room)
    return OpenedFile(file, keys, lock, head_room, set_aside, given_up)


def take_lock(path: Path, wait_s: float) -> int:
    """Lock the directory and return the lock's descriptor. Raises DiskInUse after `wait_s`."""
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


def make_room(head_room: HeadRoom) -> bool:
    """Free space for others: remove quarantine first, and the record file if still needed.

    Returns whether the record file was removed. Raises OSError.
    """
    directory, blocks = head_room.directory, blocks_of(head_room.directory)
    if head_room.bound(allocated_bytes(blocks)) < head_room.max_bytes:
        remove_quarantine(directory)
    if not blocks.exists() or not head_room.is_needed_by_others():
        return False
    shutil.rmtree(blocks)
    return True


def blocks_of(directory: Path) -> Path:
    """Return the path of the record file."""
    return directory / "blocks"


def set_apart(blocks: Path) -> bool:
    """Move the file to quarantine in place of an older file.

    Returns whether there was a file.
    """
    if not blocks.exists():
        return False
    remove_quarantine(blocks.parent)
    blocks.rename(quarantine_of(blocks.parent))
    sync_directory(blocks.parent)
    return True


def quarantine_of(directory: Path) -> Path:
    """Return the path of the quarantined file."""
    return directory / "blocks.quarantine"


def remove_quarantine(directory: Path) -> None:
    """Remove the quarantined file, if any."""
    shutil.rmtree(quarantine_of(directory), ignore_errors=True)


def _open_file(blocks: Path, config: DiskConfig, head_room: HeadRoom) -> LmdbFile:
    data = blocks / DATA_NAME
    if data.exists() and data.stat().st_size > config.max_bytes:
        shutil.rmtree(blocks)
    file = LmdbFile(blocks, head_room.bound(allocated_bytes(blocks)))
    origin = _origin(config)
    if file.origin() not in (None, origin):
        file.close()
        shutil.rmtree(blocks)
        file = LmdbFile(blocks, head_room.bound(0))
    if file.origin() is None:
        file.note_origin(origin)
    return file


def _origin(config: DiskConfig) -> bytes:
    parts = f"{_LAYOUT}:{config.block_bytes}:{config.encrypt}:".encode()
    return hashlib.sha256(parts + config.fingerprint).digest()
