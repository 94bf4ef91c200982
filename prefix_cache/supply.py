"""Where blocks come from and go back to: the free list first, then eviction, all accounted for.

Knows: how many blocks can be had, and who pays. Does not know: what they are wanted for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from prefix_cache.allocator import BlockAllocator, BlockIds
from prefix_cache.errors import InvariantBroken
from prefix_cache.holds import Holds
from prefix_cache.owners import OwnerBooks
from prefix_cache.tree import Node, Partial


class Supply:
    """The allocator and the owners' books, always changed together."""

    def __init__(self, num_blocks: int, holds: Holds) -> None:
        self.allocator = BlockAllocator(num_blocks)
        self.books = OwnerBooks()
        self._holds = holds

    @property
    def obtainable(self) -> int:
        """How many blocks `take` could give: free ones and evictable ones."""
        return self.allocator.num_free + self._holds.evictable_blocks

    def take(self, count: int, owner: str) -> BlockIds:
        """Return `count` blocks, evicting only as many as are missing.

        The caller has looked at `obtainable` first.
        """
        if count > self.allocator.num_free:
            self._evict(count - self.allocator.num_free, owner)
        self.books.took(owner, count)
        return self.allocator.allocate(count)

    def take_beside(
        self, partial: Partial | None, count: int, owner: str
    ) -> tuple[BlockIds, Partial | None]:
        """Take blocks without evicting the partial match; give that up if nothing else is left."""
        if partial is not None:
            self._holds.hold(partial.node)
            fresh = self.take(count, owner) if count <= self.obtainable else None
            self._holds.let_go(partial.node)
            if fresh is not None:
                return fresh, partial
        return self.take(count, owner), None

    def give_back(self, ids: BlockIds, owner: str) -> None:
        """Free blocks that are charged to `owner`."""
        self.allocator.free(ids)
        self.books.gave_back(owner, len(ids))

    def give_back_nodes(self, nodes: Iterable[Node]) -> None:
        """Free the blocks of nodes that are in nobody's reach any more."""
        for node in nodes:
            self.give_back(node.edge.block_ids, node.owner)

    def _evict(self, count: int, for_owner: str) -> None:
        freed: list[BlockIds] = []
        while count > 0:
            evicted = self._holds.evict(count)
            if evicted is None:
                raise InvariantBroken(f"{count} blocks short though they were counted evictable")
            node, ids = evicted
            freed.append(ids)
            count -= len(ids)
            self.books.gave_back(node.owner, len(ids))
            self.books.evicted(for_owner=for_owner, of_owner=node.owner, blocks=len(ids))
        self.allocator.free(np.concatenate(freed))
