"""The tiers: their sizes, their free slots, and which owner is charged for each of the others.

Knows: slots, leaves, and which nodes have copies in a tier and in a faster one as well. Does not
know: when a block goes up or down (`ascent`, `descent`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prefix_cache.allocator import BlockAllocator
from prefix_cache.edge import Places
from prefix_cache.eviction import Candidates
from prefix_cache.holds import Holds
from prefix_cache.node import Node
from prefix_cache.owners import OwnerBooks
from prefix_cache.residency import BIT, DEVICE, HOST, MOVING
from prefix_cache.standing import Standing
from storage.move import Tier

ABOVE = {Tier.HOST: DEVICE, Tier.DISK: DEVICE | HOST}
# For `bytes.translate`: 1 for the states of blocks that lie in a tier and higher, and stand still.
_IS_DOUBLE = {
    tier: bytes(bool(s & BIT[tier] and s & above and not s & MOVING) for s in range(256))
    for tier, above in ABOVE.items()
}


@dataclass(frozen=True, slots=True)
class Tiers:
    """The tiers below the device, in blocks; 0: there is no such tier."""

    host_blocks: int = 0
    disk_blocks: int = 0
    max_disk_writes: int = 64  # under way at once; a stalled disk holds up no more than these
    ahead: int = 0  # device blocks that a plan keeps free, so that few requests wait for copies

    def present(self) -> tuple[Tier, ...]:
        """The tiers that are there, the device among them."""
        lower = {Tier.HOST: self.host_blocks, Tier.DISK: self.disk_blocks}
        return (Tier.DEVICE, *(tier for tier, blocks in lower.items() if blocks))


class Shelf:
    """One tier's slots. One owner thread."""

    def __init__(self, tier: Tier, num_blocks: int, holds: Holds) -> None:
        self.tier = tier
        self.allocator = BlockAllocator(num_blocks)
        self._holds = holds
        self._doubles = holds.doubles[tier]

    @property
    def leaves(self) -> Candidates:
        """The candidates for eviction from this tier."""
        return self._holds.leaves[self.tier]

    def note_doubles(self, node: Node) -> None:
        """Some blocks of `node` may lie both here and higher."""
        if node.attached:
            self._doubles[node] = None

    def doubles(self, wanted: int) -> tuple[Node, Places] | None:
        """Return a node and the places of up to `wanted` of its blocks that lie higher as well.

        Those noted first come first. Nothing is lost when their copies here are forgotten.
        """
        while self._doubles:
            node = next(iter(self._doubles))
            doubles = node.edge.translated(_IS_DOUBLE[self.tier])
            found = doubles.count(1)
            if found <= wanted:
                del self._doubles[node]
            if found:
                return node, np.frombuffer(doubles, np.uint8).nonzero()[0][-wanted:]
        return None


@dataclass(frozen=True, slots=True)
class Pools:
    """The slots of all tiers, and the accounts of their owners."""

    device: BlockAllocator
    books: OwnerBooks  # of the device
    shelves: Mapping[Tier, Shelf]  # the tiers below it that are there
    standings: Mapping[Tier, Standing]

    def allocators(self) -> dict[Tier, BlockAllocator]:
        """Return the free list of every tier."""
        lower = {tier: shelf.allocator for tier, shelf in self.shelves.items()}
        return {Tier.DEVICE: self.device, **lower}


def make_pools(num_blocks: int, tiers: Tiers, holds: Holds) -> Pools:
    """Pools in which every slot is free."""
    lower = {Tier.HOST: tiers.host_blocks, Tier.DISK: tiers.disk_blocks}
    standings = {Tier.DEVICE: Standing(num_blocks)}
    standings.update((tier, Standing(blocks)) for tier, blocks in lower.items())
    return Pools(
        device=BlockAllocator(num_blocks),
        books=OwnerBooks(standings[Tier.DEVICE]),
        shelves={tier: Shelf(tier, blocks, holds) for tier, blocks in lower.items() if blocks},
        standings=standings,
    )
