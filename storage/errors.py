"""The errors of storage.

StorageError
 |- PoolDoesNotFit    a pool with no block, or with more bytes than there is memory
 |- UnevenSlices      KV heads that the number of ranks does not divide
 |- UnknownSlot       a move names a slot that its tier does not have
 |- UnsupportedMove   a move to or from a missing tier, or a disk move without a record
 |- CopyFailed        a copy did not take place; its target holds nothing
 |- DiskUnavailable   the disk tier's process does not come up
 |   `- DiskInUse     another engine uses the tier's directory
 `- FileTrouble       a fault of the disk's file; raised inside the disk's process only
     |- FileFull      no room for a write; reads go on
     |   `- DiskFull  no room because the file system has too little left
     `- FileDamaged   the file is damaged
"""

from __future__ import annotations

import errno


class StorageError(Exception):
    """The base of the errors that storage raises deliberately."""


class PoolDoesNotFit(StorageError):
    """A pool with no block, or with more bytes than there is memory."""


class UnevenSlices(StorageError):
    """KV heads, or bytes of their scales, that the number of ranks does not divide."""


class UnknownSlot(StorageError):
    """A move of a slot that its tier does not have. No move of the plan was started."""


class UnsupportedMove(StorageError):
    """A move that this machine cannot make, or that lacks its record. No copy was made."""


class CopyFailed(StorageError):
    """A failed copy, whose target slot holds no block."""


class DiskUnavailable(StorageError):
    """A disk tier whose process does not start."""


class DiskInUse(DiskUnavailable):
    """A directory that another engine uses."""


class FileTrouble(StorageError):
    """A fault of the disk's file. This error never leaves the disk's process."""


class FileFull(FileTrouble):
    """A file without room for a write. Reads go on."""


class DiskFull(FileFull):
    """A file system with too little space left for the file."""


def is_disk_full(error: Exception) -> bool:
    """Return whether the file system or a quota had no room for the write."""
    out_of_room = (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, DiskFull) or (
        isinstance(error, OSError) and error.errno in out_of_room
    )


class FileDamaged(FileTrouble):
    """A damaged file."""
