"""The owners' quotas, their enforcement, and each owner's usage.

Until the first quota is set the policy alone chooses what is evicted. From then on every owner has
a quota: its own or the default.

A request is never refused because of a quota: blocks that its owner holds over its ceiling are
evicted as soon as no sequence uses them.

`partition` turns quotas into partitions: each owner's part of a tier is its own alone.
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
    """An owner's usage and quota in one tier, in blocks. Thousands are made at once."""

    held: int
    floor: int  # the promised blocks; less than the quota if not all floors fit
    ceiling: int
    fair: float  # the owner's blocks if every owner wanted more


@dataclass(slots=True)
class Evictions:
    """Evicted copies of blocks since the start, by tier and reason."""

    caused: defaultdict[tuple[Tier, Reason], int] = field(default_factory=lambda: defaultdict(int))
    suffered: defaultdict[tuple[Tier, Reason], int] = field(
        default_factory=lambda: defaultdict(int)
    )


class Quotas:
    """The quotas of one cache. Used by one thread only."""

    def __init__(self, ref_counts: RefCounts, capacity: Capacity) -> None:
        self._ref_counts = ref_counts
        self._capacity = capacity
        self._traffic = capacity.removals.eviction_log
        self._quota_usages = {tier: capacity.quota_usages[tier] for tier in ref_counts.leaves}
        self._by_owner: dict[str, Quota] = {}
        self._parts: dict[str, float] = {}  # by owner; empty: tiers are not partitioned
        self._longest: Mapping[str, int] = {}  # blocks of each owner's longest request

    @property
    def are_partitions(self) -> bool:
        """True if every owner has its own part of each tier."""
        return bool(self._parts)

    def partition(
        self, quotas: Mapping[str, Quota], longest: Mapping[str, int] | None = None
    ) -> None:
        """Divide each tier among these owners permanently; no owners: share the tiers again.

        An owner's part is its fair share while all owners want more blocks than there are. An owner
        that is not listed has no part. A working area of the device is outside of all parts, as
        are published prefixes: each owner can run its longest request, of so many blocks, in its
        part and the area (`working_area`). Takes time in proportion to the number of owners.
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
        """Reset `owner`'s quota to the default one."""
        if owner in self._by_owner:
            self.set(owner, DEFAULT)

    def keep(self, owner: str) -> None:
        """Start to evict the blocks by which `owner` exceeds its ceiling in any tier."""
        if self._parts and owner == PUBLISHED:
            return  # a prefix that was just computed will be pinned when `keep_again` runs
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
        """Return the device blocks that are promised to `owner`: its partition, or its floor."""
        return self._quota_usages[DEVICE_TIER].floor(owner)

    def runs_alone(self, owner: str, blocks: int) -> bool:
        """Return whether a sequence of so many blocks only fits in others' partitions."""
        return self._quota_usages[DEVICE_TIER].is_too_much(owner, blocks)

    def is_kept(self, owner: str, is_busy: Callable[[str], bool]) -> bool:
        """Return whether `owner` keeps to its partitions, apart from its sequences' blocks.

        False: some of its blocks are leaving a tier, and its requests wait until these have left:
        the blocks that a request finds must not depend on how long copies take. A busy owner always
        has leaving blocks, and waits only for the blocks over its part.
        """
        if not self._parts:
            return True
        is_done = [self._capacity.offloader.trim(tier, owner) for tier in self._quota_usages]
        return all(is_done) and (is_busy(owner) or not self._capacity.is_leaving(owner))

    def keep_again(self) -> None:
        """Try again to evict blocks of owners over their ceilings, which could not move before."""
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
        """The factor of all floors in each tier: 1, or less where the floors do not all fit."""
        return {tier: quota_usage.scale for tier, quota_usage in self._quota_usages.items()}

    def shares(self) -> dict[str, dict[Tier, TierShare]]:
        """Return each owner's blocks and share by tier, for owners with blocks or a quota.

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
        """Return each owner's evictions: those it caused, and those it suffered."""
        found: defaultdict[str, Evictions] = defaultdict(Evictions)
        for eviction, blocks in self._traffic.evicted.items():
            sort = (eviction.tier, eviction.reason)
            found[eviction.for_owner].caused[sort] += blocks
            found[eviction.of_owner].suffered[sort] += blocks
        found.pop("", None)
        return dict(found)
