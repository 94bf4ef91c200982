"""Where device blocks come from and go back to: the free list first, then room that is made.

Knows: how many blocks can be had, and who pays. Does not know: what they are wanted for, or what
becomes of the blocks that make room (`descent`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from prefix_cache.allocator import BlockIds
from prefix_cache.descent import Descent
from prefix_cache.holds import Holds
from prefix_cache.landing import Landing
from prefix_cache.losses import Losses
from prefix_cache.node import Node, Partial, Position
from prefix_cache.occupancy import PoolUse, TierUse
from prefix_cache.shelf import Tiers, make_pools
from prefix_cache.traffic import Reason
from prefix_cache.transit import Transit
from storage.move import Tier


class Supply:
    """The allocator and the owners' books, always changed together."""

    def __init__(self, num_blocks: int, holds: Holds, tiers: Tiers, transit: Transit) -> None:
        pools = make_pools(num_blocks, tiers, holds)
        self.allocator, self.books = pools.device, pools.books
        self.shelves, self.standings = pools.shelves, pools.standings
        self.losses = Losses(holds, pools, transit)
        self.landing = Landing(holds, pools, self.losses, transit)
        self.descent = Descent(tiers, holds, pools, self.losses, transit)
        self._holds = holds
        self._transit = transit

    @property
    def obtainable(self) -> int:
        """How many blocks could be had, sooner or later: free ones and evictable ones."""
        return self.allocator.num_free + self._holds.evictable_blocks

    def pool(self) -> PoolUse:
        """The use of the device now."""
        total, free = self.allocator.total, self.allocator.num_free
        evictable = self._holds.evictable_blocks
        return PoolUse(total, free, total - free, evictable, total - free - evictable)

    def lower_tiers(self) -> dict[Tier, TierUse]:
        """The use of the tiers below the device that are there."""
        allocators = {tier: shelf.allocator for tier, shelf in self.shelves.items()}
        return {tier: TierUse(a.total, a.total - a.num_free) for tier, a in allocators.items()}

    def take(self, count: int, owner: str) -> BlockIds:
        """Return `count` free blocks; the caller has made room for them."""
        self.books.took(owner, count)
        return self.allocator.allocate(count)

    def take_now(self, count: int, owner: str) -> BlockIds | None:
        """Return `count` blocks, and rather lose others than wait; None: they are not to be had."""
        if count > self.obtainable or not self.descent.make_room_now(count, owner):
            return None
        return self.take(count, owner)

    def keepable(self, partial: Partial | None, count: int) -> Partial | None:
        """Return the partial match unless `count` blocks are not to be had beside it."""
        if partial is None:
            return None
        node = partial.node
        kept = self._holds.cost(Position(node, len(node.edge), node.end))
        return partial if count <= self.obtainable - kept else None

    def make_room(self, count: int, owner: str, beside: Partial | None) -> bool:
        """Whether `count` blocks are free; evicts as many as are missing, but not `beside`.

        False: not now. Copies may have been begun that will free some.
        """
        if count <= self.allocator.num_free:
            return True
        if beside is None:
            return self.descent.make_room(count, owner)
        self._holds.hold(beside.node)
        enough = self.descent.make_room(count, owner)
        self._holds.let_go(beside.node)
        return enough

    def give_back(self, ids: BlockIds, owner: str) -> None:
        """Free blocks that are charged to `owner`."""
        self.allocator.free(ids)
        self.books.gave_back(owner, len(ids))

    def placed(self, node: Node, count: int, owner: str) -> None:
        """Blocks of `owner` have become `node`'s, which had lower copies of them."""
        self.books.gave_back(owner, count)
        self.books.took(node.owner, count)
        self.landing.settled(node)

    def adopt(self, node: Node, owner: str) -> None:
        """Charge the blocks of `node` and of all on the way to it to `owner` from now on.

        They are all on the device, and none is being copied (`may_adopt`). Their records on disk
        are sealed for who had them so far and would never be read again: they are forgotten.
        """
        current = node
        while current.parent is not None:
            if current.owner != owner:
                self.losses.forget_below(current, Tier.DISK, Reason.DOUBLE)
                for tier, standing in self.standings.items():
                    blocks = len(current.edge.held_slots_in(tier))
                    standing.charge(current.owner, -blocks)
                    standing.charge(owner, blocks)
                current.owner = owner
            current = current.parent

    def may_adopt(self, node: Node, owner: str) -> bool:
        """Whether no block that is not `owner`'s yet is being copied, up to the end of `node`."""
        current = node
        while current.parent is not None:
            if current.shipments and current.owner != owner:
                return False
            current = current.parent
        return True

    def found_on_disk(self, owner: str, blocks: int) -> None:
        """After a start: some of what the disk holds is `owner`'s."""
        self.standings[Tier.DISK].charge(owner, blocks)

    def took_on_disk(self, taken: Iterable[int], erased: Iterable[int]) -> None:
        """After a start: which slots are the tree's, and which hold what nobody will find."""
        slots = np.array(list(taken), dtype=np.int32)
        self.shelves[Tier.DISK].allocator.reserve(slots)
        self._transit.erase(np.array(list(erased), dtype=np.int32))

    def give_back_nodes(self, nodes: Collection[Node]) -> None:
        """Free the blocks of nodes that are in nobody's reach any more, on every tier."""
        if nodes:
            self.losses.free_nodes(nodes)
