"""Changes of the tree as data: keys of blocks that entered it, changed tier, or left.

A block counts in its fastest tier. Only the blocks of attached nodes count. So a block that the
tree has forgotten has left, even while a lease holds it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from prefix_cache.hashing import KEY_BYTES
from prefix_cache.tree.edge import Edge
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER, Tier

MOST_KEYS = 1 << 16  # maximum number of keys kept until `take`, 1 MiB


class Kind(Enum):
    """The kinds of change to blocks."""

    ADDED = "added"
    MOVED = "moved"
    REMOVED = "removed"


class TreeChange(NamedTuple):
    """A run of consecutive blocks with the same change."""

    kind: Kind
    tier: Tier | None  # the blocks' new tier, if they are in the tree
    keys: bytes


class ChangeLog:
    """The changes since the last `take`, in order. Used by one thread only."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._num_keys = 0
        self._changes: list[tuple[Kind, Tier | None, list[bytes]]] = []

    def added(self, edge: Edge, start: int = 0) -> None:
        """Log the blocks of `edge` from index `start` on as added to the tree."""
        if edge.is_on_device:
            self._note(Kind.ADDED, DEVICE_TIER, edge.keys_of(start, edge.num_blocks))
            return
        for tier in Tier:
            first, end = edge.run_in(tier)
            self._note(Kind.ADDED, tier, edge.keys_of(max(first, start), end))

    def moved(self, edge: Edge, num_device: int, num_upper: int) -> None:
        """Log the blocks of `edge` that changed tiers. The counts are from before the change."""
        device, upper = edge.num_device, edge.num_upper
        self._note(Kind.MOVED, DEVICE_TIER, edge.keys_of(num_device, device))
        self._note(Kind.MOVED, HOST_TIER, edge.keys_of(device, min(num_device, upper)))
        self._note(Kind.MOVED, DISK_TIER, edge.keys_of(upper, num_upper))

    def removed(self, keys: bytes) -> None:
        """Log blocks that have left the tree."""
        self._note(Kind.REMOVED, None, keys)

    def take(self) -> list[TreeChange] | None:
        """Return the changes since the last call, or None if there were too many to keep."""
        changes, is_known = self._changes, self._num_keys <= self._most_keys
        self._changes, self._num_keys = [], 0
        if not is_known:
            return None
        return [TreeChange(kind, tier, b"".join(keys)) for kind, tier, keys in changes]

    def _note(self, kind: Kind, tier: Tier | None, keys: bytes) -> None:
        if not keys:
            return
        self._num_keys += len(keys) // KEY_BYTES
        if self._num_keys > self._most_keys:
            self._changes.clear()
        elif self._changes and self._changes[-1][:2] == (kind, tier):
            self._changes[-1][2].append(keys)
        else:
            self._changes.append((kind, tier, [keys]))
