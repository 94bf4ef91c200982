"""What leaves a tier: a copy of a block that has another, or the block itself, and who is told.

    forget     one tier's copy goes, the block stays where else it lies
    lose       the block goes, with all that builds on it
    free       blocks that no walk finds any more go, with all their copies

Whatever goes gives its slot back, is taken off its owner's account, and is counted by reason and
by who it went for.

Knows: slots, accounts, counts. Does not know: what is to go, or why just then (`descent`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from prefix_cache.allocator import BlockIds
from prefix_cache.edge import Places
from prefix_cache.holds import Holds
from prefix_cache.ledger import Ledger
from prefix_cache.node import Node
from prefix_cache.residency import BIT, DISK, FORGET, HOST, WITH, WITHOUT
from prefix_cache.shelf import ABOVE, Pools, Shelf
from prefix_cache.traffic import COPIED, DOUBLE, Eviction, Reason, Traffic
from prefix_cache.transit import Transit
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER, Tier

ON_DISK_ALONE = bytes(state for state in WITH[DISK] if not state & HOST)  # but for the device


class Losses:
    """Gives slots back. One owner thread."""

    def __init__(self, holds: Holds, pools: Pools, transit: Transit) -> None:
        self.traffic = Traffic()
        self.ledger = Ledger()
        self._holds = holds
        self._shelves = pools.shelves
        self._allocators = pools.allocators()
        self._books = pools.books
        self._standings = pools.standings
        self._transit = transit

    def free(self, node: Node, start: int = 0) -> None:
        """Take back all slots of the node's blocks from `start` on, on every tier."""
        for tier, slots in node.edge.held_slots(start):
            self.free_slots(tier, slots, node.owner)

    def free_nodes(self, nodes: Iterable[Node]) -> None:
        """Free the blocks of nodes in nobody's reach; where one is being copied, after that."""
        for node in nodes:
            if not node.flights:
                self.free(node)

    def free_slots(self, tier: Tier, slots: BlockIds, owner: str) -> None:
        """Take back slots of a tier that are charged to `owner`."""
        self._allocators[tier].free(slots)
        self._standings[tier].charge(owner, -len(slots))
        if tier is DISK_TIER:
            self._transit.erase(slots)

    def lose(self, tier: Tier, node: Node, wanted: int, owner: str, reason: Reason) -> None:
        """Drop up to `wanted` of the node's last blocks in `tier`, and all behind them."""
        edge = node.edge
        start, end = edge.run_in(tier)
        behind, count = edge.num_blocks - end, end - start
        if count > wanted:
            count = wanted
        self._count(tier, reason, node, count, owner)
        if node.children:
            self._lose_below(node, owner)
        if behind:
            self._count_from(node, end, Reason.BEHIND, owner)
        self.free(node, end - count)
        self._holds.trim(node, behind + count)

    def forget_copied(self, tier: Tier, node: Node, wanted: int, owner: str) -> bool:
        """Forget up to `wanted` of the node's last blocks in `tier` that lie in a slower one.

        False: the last one does not.
        """
        is_copied, start, end = last_run(tier, node, wanted)
        if is_copied:
            self.forget_copies(tier, node, start, end, owner)
        return is_copied

    def forget_copies(self, tier: Tier, node: Node, start: int, end: int, owner: str) -> None:
        """Forget the copies in `tier` of the blocks [start, end): they have slower ones."""
        self._forget(tier, node, slice(start, end), COPIED, owner)

    def forget_doubles(self, shelf: Shelf, wanted: int) -> bool:
        """Forget up to `wanted` of a tier's copies of blocks that lie higher; False: of none."""
        found = shelf.doubles(wanted)
        if found is None:
            return False
        self._forget(shelf.tier, *found, DOUBLE)
        return True

    def forget_below(self, node: Node, tier: Tier) -> None:
        """Forget the copies in a lower tier of those of the node's blocks that lie higher too."""
        states = node.edge.states
        places = np.flatnonzero((states & BIT[tier] != 0) & (states & ABOVE[tier] != 0))
        if len(places):
            self._forget(tier, node, places, Reason.TIER_GONE)

    def count_gone(self, top: Node, reason: Reason, owner: str = "") -> None:
        """A subtree is about to leave the cache with all that builds on it."""
        for node in self._holds.subtree(top):
            self._count_from(node, 0, reason, owner)

    def _lose_below(self, node: Node, owner: str) -> None:
        for child in list(node.children.values()):
            self.count_gone(child, Reason.BEHIND, owner)
            self.free_nodes(self._holds.detach(child)[1])

    def _forget(
        self, tier: Tier, node: Node, places: slice | Places, reason: Reason, owner: str = ""
    ) -> None:
        """Give up one tier's copies of blocks that have others."""
        slots = node.edge.slots(tier)[places]
        count = len(slots)
        self._count(tier, reason, node, count, owner)
        if tier is DEVICE_TIER:
            self._holds.evictable_blocks -= count
        self.free_slots(tier, slots, node.owner)
        node.edge.change(places, FORGET, tier)
        self._holds.changed(node)

    def _count_from(self, node: Node, start: int, reason: Reason, owner: str) -> None:
        """Count the blocks from place `start` on as gone, each from its fastest tier."""
        for tier in (DEVICE_TIER, *self._shelves):
            first, last = node.edge.run_in(tier)
            if last > max(first, start):
                self._count(tier, reason, node, last - max(first, start), owner)

    def _count(self, tier: Tier, reason: Reason, node: Node, count: int, owner: str) -> None:
        """`owner` "" is nobody: the block's own owner counts on both sides."""
        eviction = Eviction(tier, reason, node.owner, owner)
        self.traffic.evict(eviction, count)
        if owner and owner != node.owner:
            self.ledger.note(eviction, count)
        if tier is DEVICE_TIER:
            self._books.evicted(for_owner=owner or node.owner, of_owner=node.owner, blocks=count)


def last_run(tier: Tier, node: Node, wanted: int) -> tuple[bool, int, int]:
    """Whether the node's last block in `tier` lies where it may stay alone, and the places of
    those of the last `wanted` blocks there that are like it, without a gap.

    A block that lies in the host has none before it that lies on disk alone. So a device block in
    front of such a one may not go before it has a copy in the host.
    """
    edge = node.edge
    start, end = edge.run_in(tier)
    first = max(start, end - wanted)
    states = edge.states_of(first, end)
    or_disk = tier is DEVICE_TIER and edge.num_upper == end and not node.upper_children
    below = DISK if tier is HOST_TIER else HOST
    rest = states.rstrip(ON_DISK_ALONE) if or_disk else states
    rest = rest.rstrip(WITH[below])
    is_copied = len(rest) < len(states)
    if not is_copied:
        rest = states.rstrip(WITHOUT[below | DISK if or_disk else below])
    return is_copied, first + len(rest), end
