"""The usage of a tier by each owner, which decides whose blocks are evicted first.

When an owner needs more blocks than are free, blocks are taken from the first of these classes:

    UNPINNED    published prefixes that are no longer pinned
    OVER_OWN    the owner that wants more, if it would exceed its ceiling
    OVER        other owners over their ceilings
    ABOVE       owners above their floors, first the owner with the most blocks relative to its
                weight; for the owner that wants more, the wanted blocks count as held
    OWN         the owner that wants more, even below its floor
    BELOW       any owner, if no other class has a block

While every owner is between floor and ceiling, this order is weighted max-min fairness. The owner
with the most blocks relative to its weight gives up blocks, until the blocks of all owners that
want more are in proportion to their weights.

Where the tier is partitioned, an owner's partition is both its floor and its ceiling. Only owners
over their partition give up blocks (`Offloader.trim`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from prefix_cache.eviction.shares import (
    DEFAULT,
    PUBLISHED,
    Claim,
    Quota,
    fair_shares,
    working_area,
)

FINENESS = 256  # an owner may take 1/256 of a tier at once beyond its fair share


class Class(IntEnum):
    """The classes of owners, in the order in which they give up blocks."""

    UNPINNED = 0
    OVER_OWN = 1
    OVER = 2
    ABOVE = 3
    OWN = 4
    BELOW = 5


class Rank(NamedTuple):
    """An owner's place in the eviction order, where the lowest rank comes first."""

    sort: Class
    held: float  # the negative number of held blocks, divided by the weight
    is_other: bool  # False for the owner that needs the room, who gives up first
    owner: str


class QuotaUsage:
    """The numbers of blocks of one tier that each owner holds. Used by one thread only."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held: defaultdict[str, int] = defaultdict(int)
        self.moved: set[str] = set()  # owners whose place in the order may have changed
        self.quotas: dict[str, Quota] = {}
        self.scale = 1.0  # factor by which all floors are scaled, below 1 if they do not all fit
        # share of the tier that each owner's partition has, if partitioned
        self.parts: Mapping[str, float] = {}
        self.exceeding: set[str] = set()
        # Blocks of each owner's longest request, from which the working area is sized.
        self._longest: Mapping[str, int] = {}
        self._working = 0  # size in blocks of the working area, which is in no partition
        self._leaving: defaultdict[str, int] = defaultdict(int)
        self._floors = 0.0  # the sum of all owners' floors, as a share of the tier

    def charge(self, owner: str, blocks: int) -> None:
        """Charge `owner` for `blocks` more blocks, or for fewer if negative."""
        self.held[owner] += blocks
        if self.quotas or self.parts:
            self.moved.add(owner)
            if owner == PUBLISHED:
                self._rescale()
            if self.parts and self.excess(owner):
                self.exceeding.add(owner)

    def leaving(self, owner: str, blocks: int) -> None:
        """Add `blocks` to the count of `owner`'s blocks that copies under way will move out."""
        self._leaving[owner] += blocks
        self.moved.add(owner)

    def is_leaving(self, owner: str) -> bool:
        """Return whether `owner` will hold fewer blocks once copies under way have ended."""
        return self._leaving.get(owner, 0) > 0

    def set_quota(self, owner: str, quota: Quota) -> None:
        """Change an owner's quota."""
        self._floors += quota.floor - self.quotas.get(owner, DEFAULT).floor
        self.quotas[owner] = quota
        self.moved.add(owner)
        self._rescale()

    def partition(
        self,
        parts: Mapping[str, float],
        working: int = 0,
        *,
        longest: Mapping[str, int] | None = None,
    ) -> None:
        """Reserve a partition of the tier for each owner, and `working` blocks for all owners.

        `longest` is the number of blocks of each owner's longest request. If it is given, the
        working area is sized for these requests.
        """
        self.parts, self._working, self._longest = parts, working, longest or {}
        self._resize_working()
        self.moved.update(self.held, self.quotas, parts)
        self.exceeding = {owner for owner in self.held if parts and self.excess(owner)}

    def level(self, owner: str) -> int:
        """Count `owner`'s blocks that will still be here once copies under way have ended."""
        return self.held.get(owner, 0) - self._leaving.get(owner, 0)

    def floor(self, owner: str) -> int:
        """Return the number of blocks that are guaranteed to `owner`."""
        if self.parts:
            return self._partition_of(owner)
        return int(self.quotas.get(owner, DEFAULT).floor * self.scale * self.total + 1e-6)

    def ceiling(self, owner: str) -> int:
        """Return the number of unused blocks, which no sequence reads, that `owner` may keep."""
        if self.parts:
            return self._partition_of(owner)
        return int(self.quotas.get(owner, DEFAULT).ceiling * self.total + 1e-6)

    def excess(self, owner: str, more: int = 0) -> int:
        """Count the blocks by which `owner` would exceed its ceiling with `more` blocks."""
        if not self.parts and (owner == PUBLISHED or owner not in self.quotas):
            return 0
        return max(self.level(owner) + more - self.ceiling(owner), 0)

    def is_too_much(self, owner: str, blocks: int) -> bool:
        """Return whether `blocks` exceed `owner`'s partition and the working area together."""
        return bool(self.parts) and blocks > self._partition_of(owner) + self._working

    def rank(self, owner: str, more: int | None = None) -> Rank:
        """Rank `owner` as a victim for another owner, or for its own need of `more` blocks."""
        is_other = more is None
        if owner == PUBLISHED:
            return Rank(Class.UNPINNED, 0.0, is_other, owner)
        level = self.level(owner) + (more or 0)
        if level > self.ceiling(owner):
            sort = Class.OVER if is_other else Class.OVER_OWN
        elif level > self.floor(owner):
            sort = Class.ABOVE
        else:
            sort = Class.BELOW if is_other else Class.OWN
        return Rank(sort, -level / self._weight(owner), is_other, owner)

    def allowance(self, first: Rank, then: Rank | None, more: int) -> int:
        """Return how many blocks `first` may give up before `then` gives up blocks. At least 1."""
        if first.sort in (Class.OWN, Class.UNPINNED):
            return self.total
        level = self.level(first.owner) + (0 if first.is_other else more)
        if first.sort in (Class.OVER_OWN, Class.OVER):
            return max(level - self.ceiling(first.owner), 1)
        most = level - self.floor(first.owner) if first.sort is Class.ABOVE else level
        if then is not None and then.sort is first.sort:
            ahead = (then.held - first.held) * self._weight(first.owner)
            most = min(most, int(ahead) + max(self.total // FINENESS, 1))
        return max(most, 1)

    def shares(self) -> dict[str, float]:
        """Return the fair share in blocks of each owner that has blocks or a quota."""
        owners = {o for o, held in self.held.items() if held} | self.quotas.keys()
        if self.parts:
            owners |= self.parts.keys()
            return {owner: float(self._partition_of(owner)) for owner in owners - {PUBLISHED}}
        claims = {
            owner: Claim(self.floor(owner), self.ceiling(owner), self._weight(owner))
            for owner in owners - {PUBLISHED}
        }
        return fair_shares(self.total - self.held.get(PUBLISHED, 0), claims)

    def _partition_of(self, owner: str) -> int:
        room = self.total - self.held.get(PUBLISHED, 0) - self._working
        return int(self.parts.get(owner, 0.0) * max(room, 0) + 1e-6)

    def _resize_working(self) -> None:
        if self._longest:
            room = self.total - self.held.get(PUBLISHED, 0)
            self._working = working_area(room, self._longest, self.parts)

    def _weight(self, owner: str) -> float:
        return self.quotas.get(owner, DEFAULT).weight

    def _rescale(self) -> None:
        room = (self.total - self.held.get(PUBLISHED, 0)) / max(self.total, 1)
        scale = min(1.0, room / self._floors) if self._floors > 1e-9 else 1.0
        if scale != self.scale:
            self.scale = scale
            self.moved.update(self.quotas)
        if self.parts:
            self._resize_working()
            self.moved.update(self.held)
            self.exceeding.update(self.held)


@dataclass(frozen=True, slots=True)
class OwnerUse:
    """An owner's part of the device, in blocks.

    Every block that is not free is charged to the owner whose lease took it. An owner that evicts
    its own blocks counts as causing and as suffering these evictions.
    """

    blocks_held: int
    evictions_caused: int  # blocks of any owner evicted for this owner, since the start
    evictions_suffered: int  # blocks of this owner evicted for any owner, since the start
