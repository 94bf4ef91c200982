"""What can go wrong in storage, as types.

Knows: what did not take place. Does not know: what that means for a request.

StorageError
 |- PoolDoesNotFit    a pool with no block, or with more bytes than there are
 |- UnknownSlot       a move names a slot that its tier does not have
 |- UnsupportedMove   a move between tiers that this machine does not have, or without its record
 |- CopyFailed        a copy did not take place; its target holds nothing
 |- DiskUnavailable   the disk tier's process does not come up
 |   `- DiskInUse     another engine has its directory
 `- FileTrouble       what may be wrong with the disk's file; raised inside its process only
     |- FileFull      no room for a write, in the file or on the disk; reads go on
     `- FileDamaged   the file is no good any more
"""

from __future__ import annotations


class StorageError(Exception):
    """Base of everything this room raises on purpose."""


class PoolDoesNotFit(StorageError):
    """A pool with no block, or with more bytes than there are."""


class UnknownSlot(StorageError):
    """A move names a slot that its tier does not have. Nothing of the plan was copied."""


class UnsupportedMove(StorageError):
    """A move between tiers that this machine does not have. Nothing of the plan was copied."""


class CopyFailed(StorageError):
    """A copy did not take place; its target holds nothing."""


class DiskUnavailable(StorageError):
    """The disk tier's process does not come up."""


class DiskInUse(DiskUnavailable):
    """Another engine has the directory."""


class FileTrouble(StorageError):
    """Something is wrong with the disk's file; never leaves the disk's process."""


class FileFull(FileTrouble):
    """No room for a write, in the file or on the disk; reads go on."""


class FileDamaged(FileTrouble):
    """The file is no good any more."""
