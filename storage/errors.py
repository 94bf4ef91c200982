"""Errors of storage, as types.

Knows: what did not take place. Does not know: what that means for a request.

StorageError
 |- PoolDoesNotFit    a pool with no block, or with more bytes than there are
 |- UnevenSlices      KV heads that do not divide between so many ranks
 |- UnknownSlot       a move names a slot that its tier does not have
 |- UnsupportedMove   a move between tiers that this machine does not have, or without its record
 |- CopyFailed        a copy did not take place; its target holds nothing
 |- DiskUnavailable   the disk tier's process does not come up
 |   `- DiskInUse     another engine has its directory
 `- FileTrouble       what may be wrong with the disk's file; raised inside its process only
     |- FileFull      no room for a write; reads go on
     |   `- DiskFull  because its file system has too little left
     `- FileDamaged   the file is damaged
"""

from __future__ import annotations

import errno


class StorageError(Exception):
    """Base of everything this package raises on purpose."""


class PoolDoesNotFit(StorageError):
    """A pool with no block, or with more bytes than there are."""


class UnevenSlices(StorageError):
    """KV heads, or the bytes of their scales, that do not divide between so many ranks."""


class UnknownSlot(StorageError):
    """A move names a slot that its tier does not have. Nothing of the plan was copied."""


class UnsupportedMove(StorageError):
    """A move that this machine cannot make, or without its record. Nothing was copied."""


class CopyFailed(StorageError):
    """A copy did not take place; its target holds nothing."""


class DiskUnavailable(StorageError):
    """The disk tier's process does not come up."""


class DiskInUse(DiskUnavailable):
    """Another engine has the directory."""


class FileTrouble(StorageError):
    """Something is wrong with the disk's file; never leaves the disk's process."""


class FileFull(FileTrouble):
    """File without room for a write; reads go on."""


class DiskFull(FileFull):
    """The file system of the file has too little left."""


def is_disk_full(error: Exception) -> bool:
    """Return whether the file system, or a quota of it, had no room for what was to be written."""
    out_of_room = (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, DiskFull) or (
        isinstance(error, OSError) and error.errno in out_of_room
    )


class FileDamaged(FileTrouble):
    """The file is damaged."""
