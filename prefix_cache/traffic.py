"""Copies between tiers and evictions from them, counted in blocks since the start.

Knows: counts. Does not know: bytes or times.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from storage.move import Tier

MAX_EVICTIONS = 4096  # different ones that are counted by owner


class Reason(Enum):
    """Why a copy of a block was given up."""

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


def _zeros() -> dict[Tier, int]:
    return dict.fromkeys(Tier, 0)


@dataclass(slots=True)
class Traffic:
    """Counts by tier. Kept by `ascent`, `landing` and `losses`; read for reports."""

    written: dict[Tier, int] = field(default_factory=_zeros)  # copied down into it
    loaded: dict[Tier, int] = field(default_factory=_zeros)  # copied up from it
    failed: dict[Tier, int] = field(default_factory=_zeros)  # were to be copied into it
    evicted: Counter[Eviction] = field(default_factory=Counter)

    def evict(self, eviction: Eviction, blocks: int) -> None:
        """Count copies that were given up; past MAX_EVICTIONS kinds, new ones without owners."""
        if eviction not in self.evicted and len(self.evicted) >= MAX_EVICTIONS:
            eviction = eviction._replace(of_owner="", for_owner="")
        self.evicted[eviction] += blocks

    def by_reason(self, tier: Tier) -> dict[Reason, int]:
        """Copies given up in `tier`, by reason."""
        counts: Counter[Reason] = Counter()
        for eviction, blocks in self.evicted.items():
            if eviction.tier is tier:
                counts[eviction.reason] += blocks
        return dict(counts)
