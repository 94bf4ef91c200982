"""The owners' quotas, their enforcement, and each owner's usage.

Until the first quota is set, the policy alone chooses what is evicted. From then on, every owner
has its own quota or the default quota.

A quota refuses no request. Blocks that an owner holds over its ceiling are evicted once no sequence
uses them.

`partition` turns quotas into partitions, which no other owner can use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.eviction.shares import DEFAULT, PUBLISHED, Quota, partition
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tiers.eviction_log import Reason
from storage.move import DEVICE_TIER, Tier


class TierShare(NamedTuple):
    """An owner's usage and quota in one tier, in blocks.

    A tuple, because thousands are made at once.
    """

    held: int
    floor: int  # less than the quota's floor if not all floors fit
    ceiling: int
    fair: float  # the owner's share in blocks while every owner wants more


@dataclass(slots=True)
class Evictions:
    """Evicted copies of blocks since the start, by tier and reason."""

    caused: defaultdict[tuple[Tier, Reason], int] = field(default_factory=lambda: defaultdict(int))
    suffered: defaultdict[tuple[Tier, Reason], int] = field(
        default_factory=lambda: defaultdict(int)
    )


class Quotas:
    """The quotas of a cache's owners. Used by one thread only."""

    def __init__(self, ref_counts: RefCounts, capacity: Capacity) -> None:
        self._ref_counts = ref_counts
        self._capacity = capacity
        self._traffic = capacity.removals.eviction_log
        self._quota_usages = {tier: capacity.quota_usages[tier] for tier in ref_counts.leaves}
        self._by_owner: dict[str, Quota] = {}
        self._parts: dict[str, float] = {}
        self._longest: Mapping[str, int] = {}

    @property
    def are_partitions(self) -> bool:
        """True if every owner has its own partition of each tier."""
        return bool(self._parts)

    def partition(
        self, quotas: Mapping[str, Quota], longest: Mapping[str, int] | None = None
    ) -> None:
        """Divide each tier among the owners of `quotas`, or share the tiers if there are none.

        An owner's partition is its fair share while all owners want more blocks than there are. An
        owner that is not listed has no partition. Published prefixes and a working area of the
        device are outside all partitions. The working area is so large that each owner can run its
        longest request, of `longest` blocks, in its partition and the area. Takes time proportional
        to the number of owners.
        """
        parts, longest = partition(quotas), longest or {}
        if (parts, longest) == (self._parts, self._longest):
            return
        self._parts, self._longest = parts, longest
        for tier, quota_usage in self._quota_usages.items():
            quota_usage.partition(parts, longest=longest if tier is DEVICE_TIER else None)
        self._ref_counts.set_apart(self._quota_usages)
        self._capacity.checkpoints.partition(parts)
        self.keep_again()

    def set(self, owner: str, quota: Quota) -> None:
        """Set `owner`'s quota. Raises ValueError for "" and the owner of published prefixes."""
        if owner in ("", PUBLISHED):
            raise ValueError(f"{owner!r} can have no quota")
        if self._by_owner.get(owner) == quota:
            return
        is_first = not self._by_owner
        self._by_owner[owner] = quota
        for quota_usage in self._quota_usages.values():
            quota_usage.set_quota(owner, quota)
        if is_first:
            self._ref_counts.divide(self._quota_usages)
        self._capacity.checkpoints.set_quota(owner, quota)
        self.keep(owner)

    def forget(self, owner: str) -> None:
        if owner in self._by_owner:
            self.set(owner, DEFAULT)

    def keep(self, owner: str) -> None:
        """Start to evict the blocks by which `owner` exceeds its ceiling in any tier."""
        if self._parts and owner == PUBLISHED:
            return  # evicted later, in `keep_again`, when a newly published prefix is pinned
        if self._by_owner or self._parts:
            self._trim(owner)

    def _trim(self, owner: str) -> None:
        for tier in self._quota_usages:
            self._capacity.offloader.trim(tier, owner)
        self._capacity.checkpoints.trim(owner)
        for quota_usage in self._quota_usages.values():
            if quota_usage.excess(owner):
                quota_usage.exceeding.add(owner)

    def part(self, owner: str) -> int:
        """Return how many device blocks `owner` is guaranteed: its partition, else its floor."""
        return self._quota_usages[DEVICE_TIER].floor(owner)

    def runs_alone(self, owner: str, blocks: int) -> bool:
        """Return whether a sequence of this many blocks needs room in other owners' partitions."""
        return self._quota_usages[DEVICE_TIER].is_too_much(owner, blocks)

    def is_kept(self, owner: str, is_busy: Callable[[str], bool]) -> bool:
        """Return whether `owner` is within its partitions, apart from its sequences' blocks.

        Otherwise, some of the owner's blocks are leaving a tier, and the owner's requests wait
        until these blocks have left. So the blocks that a request finds do not depend on how long
        copies take. A busy owner waits only for the blocks over its partition.
        """
        if not self._parts:
            return True
        is_done = [self._capacity.offloader.trim(tier, owner) for tier in self._quota_usages]
        return all(is_done) and (is_busy(owner) or not self._capacity.is_leaving(owner))

    def keep_again(self) -> None:
        """Try again to evict blocks of owners over their ceilings."""
        self._capacity.checkpoints.trim_exceeding()
        over: set[str] = set()
        for quota_usage in self._quota_usages.values():
            over |= quota_usage.exceeding
            quota_usage.exceeding.clear()
        for owner in sorted(over):
            self._trim(owner)

    def most_kept(self, owner: str) -> int:
        """Return how many device blocks of an owner may stay while no sequence uses them."""
        return self._quota_usages[DEVICE_TIER].ceiling(owner)

    @property
    def floors_scale(self) -> dict[Tier, float]:
        """The factor of all floors in each tier, below 1 if the floors do not all fit."""
        return {tier: quota_usage.scale for tier, quota_usage in self._quota_usages.items()}

    def shares(self) -> dict[str, dict[Tier, TierShare]]:
        """Return the usage by tier of each owner that has blocks or a quota.

        The owner of published prefixes is left out.
        """
        found: defaultdict[str, dict[Tier, TierShare]] = defaultdict(dict)
        for tier, quota_usage in self._quota_usages.items():
            for owner, fair in quota_usage.shares().items():
                found[owner][tier] = TierShare(
                    held=quota_usage.held.get(owner, 0),
                    floor=quota_usage.floor(owner),
                    ceiling=quota_usage.ceiling(owner),
                    fair=fair,
                )
        return dict(found)

    def evictions(self) -> dict[str, Evictions]:
        """Return the evictions that each owner caused and suffered."""
        found: defaultdict[str, Evictions] = defaultdict(Evictions)
        for eviction, blocks in self._traffic.evicted.items():
            sort = (eviction.tier, eviction.reason)
            found[eviction.for_owner].caused[sort] += blocks
            found[eviction.of_owner].suffered[sort] += blocks
        found.pop("", None)
        return dict(found)
