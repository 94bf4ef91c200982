"""The owners' quotas, their enforcement, and what each owner holds.

Until a quota is set there is none, and what is evicted first is the policy's choice alone. From the
first one on every owner has one, if only the default.

A request is never refused because of a quota: blocks that its owner holds over its ceiling are
evicted as soon as no sequence uses them.

Knows: owners, tiers, quotas. Does not know: which block goes (`contest`), or how (`descent`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from prefix_cache.holds import Holds
from prefix_cache.quota import DEFAULT, PUBLISHED, Quota
from prefix_cache.supply import Supply
from prefix_cache.traffic import Reason
from storage.move import Tier


@dataclass(frozen=True, slots=True)
class Share:
    """How an owner stands in one tier, in blocks."""

    held: int
    floor: int  # what it is promised; less than its quota says where not all floors fit
    ceiling: int
    fair: float  # what it would have if everyone wanted more


@dataclass(slots=True)
class Evictions:
    """Copies of blocks given up since the start, by tier and reason."""

    caused: defaultdict[tuple[Tier, Reason], int] = field(default_factory=lambda: defaultdict(int))
    suffered: defaultdict[tuple[Tier, Reason], int] = field(
        default_factory=lambda: defaultdict(int)
    )


class Quotas:
    """The quotas of one cache. One owner thread."""

    def __init__(self, holds: Holds, supply: Supply) -> None:
        self._holds = holds
        self._descent = supply.descent
        self._traffic = supply.losses.traffic
        self._standings = {tier: supply.standings[tier] for tier in holds.leaves}
        self._by_owner: dict[str, Quota] = {}
        self._capped: set[str] = set()  # owners with a ceiling below the whole
        self._over: set[str] = set()  # owners that were over it in some tier at the last look

    def set(self, owner: str, quota: Quota) -> None:
        """Give `owner` a quota. Raises ValueError for "" and the owner of published prefixes."""
        if owner in ("", PUBLISHED):
            raise ValueError(f"{owner!r} can have no quota")
        if self._by_owner.get(owner) == quota:
            return
        is_first = not self._by_owner
        self._by_owner[owner] = quota
        for standing in self._standings.values():
            standing.set_quota(owner, quota)
        if is_first:
            self._holds.divide(self._standings)
        if quota.ceiling < 1.0:
            self._capped.add(owner)
        else:
            self._capped.discard(owner)
        self.keep(owner)

    def forget(self, owner: str) -> None:
        """Take back `owner`'s quota: from now on it has the default one."""
        if owner in self._by_owner:
            self.set(owner, DEFAULT)

    def keep(self, owner: str) -> None:
        """Begin to evict what `owner` holds over its ceiling in any tier."""
        if owner not in self._capped:
            return
        for tier in self._standings:
            self._descent.keep_to_ceiling(tier, owner)
        if any(standing.excess(owner) for standing in self._standings.values()):
            self._over.add(owner)

    def keep_again(self) -> None:
        """Try again for owners over their ceiling, whose blocks were in use or could not move."""
        if self._over:
            over, self._over = self._over, set()
            for owner in sorted(over):
                self.keep(owner)

    @property
    def floors_scale(self) -> dict[Tier, float]:
        """What floors are worth in each tier: 1, or less where they do not all fit."""
        return {tier: standing.scale for tier, standing in self._standings.items()}

    def shares(self) -> dict[str, dict[Tier, Share]]:
        """What each owner holds and may hold, by tier; of all that hold something or have a quota.

        The owner of published prefixes is left out.
        """
        found: defaultdict[str, dict[Tier, Share]] = defaultdict(dict)
        for tier, standing in self._standings.items():
            for owner, fair in standing.shares().items():
                found[owner][tier] = Share(
                    held=standing.held.get(owner, 0),
                    floor=standing.floor(owner),
                    ceiling=standing.ceiling(owner),
                    fair=fair,
                )
        return dict(found)

    def evictions(self) -> dict[str, Evictions]:
        """The evictions for each owner, and of its blocks; those for no owner count on one side."""
        found: defaultdict[str, Evictions] = defaultdict(Evictions)
        for eviction, blocks in self._traffic.evicted.items():
            sort = (eviction.tier, eviction.reason)
            found[eviction.for_owner].caused[sort] += blocks
            found[eviction.of_owner].suffered[sort] += blocks
        found.pop("", None)
        return dict(found)
