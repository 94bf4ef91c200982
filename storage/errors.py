"""What this room refuses.

StorageError
 |- PoolDoesNotFit    a pool with no block, or with more bytes than the device gives
 |- UnknownSlot       a move names a slot that its tier does not have
 `- UnsupportedMove   a move between tiers that this machine does not have
"""

from __future__ import annotations


class StorageError(Exception):
    """Base of everything this room raises on purpose."""


class PoolDoesNotFit(StorageError):
    """A pool with no block, or with more bytes than the device gives."""


class UnknownSlot(StorageError):
    """A move names a slot that its tier does not have. Nothing of the plan was copied."""


class UnsupportedMove(StorageError):
    """A move between tiers that this machine does not have. Nothing of the plan was copied."""
