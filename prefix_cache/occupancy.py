"""How much of each tier is in use, for reports.

Knows: sums. Does not know: whose the blocks are (`owners`), or what went where (`traffic`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The device pool, in blocks: total = free + used, used = evictable + leased."""

    total: int
    free: int
    used: int
    evictable: int  # could be had by evicting
    leased: int  # held in the tree, private to a lease, or detached and not yet let go


@dataclass(frozen=True, slots=True)
class TierUse:
    """A tier below the device, in blocks."""

    total: int
    used: int  # hold a block, or are being filled
