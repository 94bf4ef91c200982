"""Counts of copies between tiers and of evictions, in blocks, and the last evictions.

The last evictions between different owners are listed with tier and reason.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import Enum
from typing import NamedTuple

from storage.move import DEVICE_TIER, Tier

MAX_EVICTIONS = 4096  # maximum number of kinds of eviction that are counted by owner
LOG_LENGTH = 1000


class Reason(Enum):
    """The reasons why a copy of a block was given up."""

    COPIED = "copied"  # a copy remains in a slower tier
    DOUBLE = "double"  # a copy remains in a faster tier
    NO_ROOM = "no_room"  # the last copy; the tier below had no room or does not exist
    UNEARNED = "unearned"  # the last copy; a block that was never reused does not go to disk
    BUSY = "busy"  # the last copy; the disk had too many writes under way
    UNKEPT = "unkept"  # the last copy; an earlier attempt to copy it to the tier below had failed
    URGENT = "urgent"  # the last copy; a running sequence needed the room at once
    BEHIND = "behind"  # the last copy; the block followed a dropped block
    LOST = "lost"  # a copy of this block or of a block before it was damaged
    TIER_GONE = "tier_gone"  # the tier lost all its blocks

    __hash__ = object.__hash__  # faster than Enum's own hash, for singletons


COPIED, DOUBLE, NO_ROOM = Reason.COPIED, Reason.DOUBLE, Reason.NO_ROOM


class Eviction(NamedTuple):
    """A kind of eviction, to be counted. `for_owner` needed the room, or is "" if no owner did."""

    tier: Tier
    reason: Reason
    of_owner: str
    for_owner: str


class EvictionEntry(NamedTuple):
    """An eviction of several blocks at once."""

    when: float  # monotonic seconds of the eviction
    eviction: Eviction
    blocks: int


class EvictionLog:
    """Counts of evictions by tier, and the last evictions between owners.

    Consecutive equal evictions form one entry, with the time of the last eviction.
    """

    def __init__(self) -> None:
        self.now = 0.0  # monotonic seconds, set by the cache
        self.written = dict.fromkeys(Tier, 0)  # numbers of blocks copied into each lower tier
        self.loaded = dict.fromkeys(Tier, 0)  # numbers of blocks copied up from each tier
        self.failed = dict.fromkeys(Tier, 0)
        self.evicted: Counter[Eviction] = Counter()
        # For each owner: number of device blocks evicted to give it room (caused), and number of
        # its own device blocks evicted (suffered).
        self.caused: Counter[str] = Counter()
        self.suffered: Counter[str] = Counter()
        self._last: deque[EvictionEntry] = deque(maxlen=LOG_LENGTH)

    def evict(self, eviction: Eviction, blocks: int) -> None:
        """Count evicted copies. After MAX_EVICTIONS kinds, new kinds are counted without owners."""
        tier, _, of_owner, for_owner = eviction
        if tier is DEVICE_TIER:
            self.caused[for_owner or of_owner] += blocks
            self.suffered[of_owner] += blocks
        if for_owner and of_owner != for_owner:
            self._note(eviction, blocks)
        if eviction not in self.evicted and len(self.evicted) >= MAX_EVICTIONS:
            eviction = eviction._replace(of_owner="", for_owner="")
        self.evicted[eviction] += blocks

    def by_reason(self, tier: Tier) -> dict[Reason, int]:
        """Count the copies evicted from `tier`, by reason."""
        counts: Counter[Reason] = Counter()
        for eviction, blocks in self.evicted.items():
            if eviction.tier is tier:
                counts[eviction.reason] += blocks
        return dict(counts)

    def entries(self) -> list[EvictionEntry]:
        """List the last evictions between different owners, newest first."""
        return list(reversed(self._last))

    def _note(self, eviction: Eviction, blocks: int) -> None:
        last = self._last[-1] if self._last else None
        if last is not None and (last.when, last.eviction) == (self.now, eviction):
            self._last[-1] = last._replace(blocks=last.blocks + blocks)
        else:
            self._last.append(EvictionEntry(self.now, eviction, blocks))
