"""What has gone between the tiers and out of them, counted in blocks since the start.

Knows: counts. Does not know: bytes or times.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from storage.move import Tier

MOST_EVICTIONS = 4096  # different ones that are told apart by owner


class Reason(Enum):
    """Why a copy of a block was given up."""

    COPIED = "copied"  # another lies in a slower tier
    DOUBLE = "double"  # another lies in a faster tier
    NO_ROOM = "no_room"  # the last copy; the tier below had no room, or is not there
    UNEARNED = "unearned"  # the last copy; nobody had asked for the block again
    BUSY = "busy"  # the last copy; the disk had enough to write
    UNKEPT = "unkept"  # the last copy; one lower down had failed
    URGENT = "urgent"  # the last copy; a running sequence needed the room at once
    BEHIND = "behind"  # the last copy; the block built on one that was dropped
    LOST = "lost"  # what was read was no good, or the block built on one of which it was
    TIER_GONE = "tier_gone"  # all that a tier held was forgotten

    __hash__ = object.__hash__  # a member is the only one of its kind; Enum's is far slower


COPIED, DOUBLE, NO_ROOM = Reason.COPIED, Reason.DOUBLE, Reason.NO_ROOM  # the daily ones, at hand
LAST_COPY = frozenset(Reason) - {COPIED, DOUBLE}


class Eviction(NamedTuple):
    """One sort of eviction: from where, why, whose, and for whom ("": for nobody in particular)."""

    tier: Tier
    reason: Reason
    of_owner: str
    for_owner: str


def _zeros() -> dict[Tier, int]:
    return dict.fromkeys(Tier, 0)


@dataclass(slots=True)
class Traffic:
    """Counts by tier. Kept by `ascent` and `descent`; read by whoever reports."""

    written: dict[Tier, int] = field(default_factory=_zeros)  # copied down into it
    loaded: dict[Tier, int] = field(default_factory=_zeros)  # copied up from it
    failed: dict[Tier, int] = field(default_factory=_zeros)  # were to be copied into it
    evicted: Counter[Eviction] = field(default_factory=Counter)

    def evict(self, eviction: Eviction, blocks: int) -> None:
        """Count copies that were given up; the owners of what is rare go unnamed."""
        if eviction not in self.evicted and len(self.evicted) >= MOST_EVICTIONS:
            eviction = eviction._replace(of_owner="", for_owner="")
        self.evicted[eviction] += blocks

    def by_reason(self, tier: Tier) -> dict[Reason, int]:
        """Copies given up in `tier`, by reason."""
        counts: Counter[Reason] = Counter()
        for eviction, blocks in self.evicted.items():
            if eviction.tier is tier:
                counts[eviction.reason] += blocks
        return dict(counts)

    def dropped(self, tier: Tier) -> int:
        """Blocks that left the cache from `tier`."""
        return sum(n for reason, n in self.by_reason(tier).items() if reason in LAST_COPY)
