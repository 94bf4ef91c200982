"""How blocks leave a tier, and what is updated when they do.

    forget     one tier's copy is given up; the block has copies in other tiers
    lose       the last copy of a block is given up, with all blocks that build on it
    free       blocks that are not in the tree any more are given up, with all their copies

In each case the slot is freed, its owner is no longer charged for it, and the eviction is counted
by reason and by the owner that it was for.

Knows: slots, accounts, counts. Does not know: what is to be evicted, or when (`descent`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from prefix_cache.allocator import BlockIds
from prefix_cache.edge import Places
from prefix_cache.eviction_log import EvictionLog
from prefix_cache.holds import Holds
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
        self.eviction_log = EvictionLog()
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
        """Free the blocks of detached nodes that nothing holds; of one being copied, later."""
        for node in nodes:
            if not node.shipments:
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

    def forget_below(self, node: Node, tier: Tier, reason: Reason) -> None:
        """Forget the copies in a lower tier of those of the node's blocks that lie higher too."""
        states = node.edge.states
        places = np.flatnonzero((states & BIT[tier] != 0) & (states & ABOVE[tier] != 0))
        if len(places):
            self._forget(tier, node, places, reason)

    def count_gone(self, top: Node, reason: Reason, owner: str = "") -> None:
        """Count all blocks of a subtree that is about to leave the cache."""
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
        """Count an eviction for `owner`; with "" the block's own owner counts on both sides."""
        eviction = Eviction(tier, reason, node.owner, owner)
        self.traffic.evict(eviction, count)
        if owner and owner != node.owner:
            self.eviction_log.note(eviction, count)
        if tier is DEVICE_TIER:
            self._books.evicted(for_owner=owner or node.owner, of_owner=node.owner, blocks=count)


def last_run(tier: Tier, node: Node, wanted: int) -> tuple[bool, int, int]:
    """Whether the node's last block in `tier` has a copy in a slower tier that may stay alone, and
    the places [start, end) of the run of blocks like it, of at most `wanted`, that ends there.

    No block before one that lies in the host may lie on disk alone. So a device block before such a
    block may not be forgotten while its only other copy is on disk.
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
