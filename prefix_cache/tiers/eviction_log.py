"""Copies between tiers and evictions from them, counted in blocks since the start; and the last
evictions between different owners: whose block, for whom, from where and why.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import Enum
from typing import NamedTuple

from storage.move import DEVICE_TIER, Tier

MAX_EVICTIONS = 4096  # different ones that are counted by owner
LOG_LENGTH = 1000


class Reason(Enum):
    """Reasons why a copy of a block was given up."""

    COPIED = "copied"  # there is another copy in a slower tier
    DOUBLE = "double"  # there is another copy in a faster tier
    NO_ROOM = "no_room"  # the last copy; the tier below had no room, or there is none
    UNEARNED = "unearned"  # the last copy; the block was never asked for again, so no disk for it
    BUSY = "busy"  # the last copy; the disk had too many writes under way
    UNKEPT = "unkept"  # the last copy; copying it down had failed before
    URGENT = "urgent"  # the last copy; a running sequence needed the room at once
    BEHIND = "behind"  # the last copy; the block built on one that was dropped
    LOST = "lost"  # a copy was read and found damaged, of this block or one that it builds on
    TIER_GONE = "tier_gone"  # a tier lost all that it held

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash is far slower


COPIED, DOUBLE, NO_ROOM = Reason.COPIED, Reason.DOUBLE, Reason.NO_ROOM  # the daily ones, at hand


class Eviction(NamedTuple):
    """A kind of eviction: tier, reason, the blocks' owner, and the owner it was for ("": none)."""

    tier: Tier
    reason: Reason
    of_owner: str
    for_owner: str


class EvictionEntry(NamedTuple):
    """Blocks that were evicted in one go."""

    when: float  # seconds, monotonic
    eviction: Eviction
    blocks: int


class EvictionLog:
    """Counts by tier, and the last evictions between owners. Read for reports.

    Equal evictions in a row are one entry, at the last time that a caller passed to the cache.
    """

    def __init__(self) -> None:
        self.now = 0.0  # set by the cache
        self.written = dict.fromkeys(Tier, 0)  # copied down into it
        self.loaded = dict.fromkeys(Tier, 0)  # copied up from it
        self.failed = dict.fromkeys(Tier, 0)  # were to be copied into it
        self.evicted: Counter[Eviction] = Counter()
        # Device blocks of anyone that went for an owner, and of this owner that went for anyone.
        self.caused: Counter[str] = Counter()
        self.suffered: Counter[str] = Counter()
        self._last: deque[EvictionEntry] = deque(maxlen=LOG_LENGTH)

    def evict(self, eviction: Eviction, blocks: int) -> None:
        """Count copies that were given up; past MAX_EVICTIONS kinds, new ones without owners."""
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
        """Count copies given up in `tier`, by reason."""
        counts: Counter[Reason] = Counter()
        for eviction, blocks in self.evicted.items():
            if eviction.tier is tier:
                counts[eviction.reason] += blocks
        return dict(counts)

    def entries(self) -> list[EvictionEntry]:
        """List the last evictions of one owner's blocks for another, the newest first."""
        return list(reversed(self._last))

    def _note(self, eviction: Eviction, blocks: int) -> None:
        last = self._last[-1] if self._last else None
        if last is not None and (last.when, last.eviction) == (self.now, eviction):
            self._last[-1] = last._replace(blocks=last.blocks + blocks)
        else:
            self._last.append(EvictionEntry(self.now, eviction, blocks))
