"""Removals of blocks from a tier or the tree, and the updates that follow.

    forget     one tier's copy is given up; the block has copies in other tiers
    lose       the last copy of a block is given up, with all blocks that build on it
    free       blocks that have left the tree are given up, with all their copies
    prune      a branch is taken out of the tree on request (`pruning.py`), held or not: leased
               blocks stay valid for their holders and are freed with the last of their leases

Each removal frees the slot, ends the owner's charge and counts the eviction. The count is by reason
and by the owner that needed the room.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from prefix_cache.eviction.eviction_policy import ABOVE
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.tiers.checkpoints import Checkpoints
from prefix_cache.tiers.eviction_log import COPIED, DOUBLE, Eviction, EvictionLog, Reason
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.tier_pools import Pools
from prefix_cache.tree.edge import BlockIds, Places
from prefix_cache.tree.node import Node, Position
from prefix_cache.tree.residency import BIT, DISK, FORGET, HOST, WITH, WITHOUT
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER, Tier

# residencies with a disk copy and no host copy
ON_DISK_ALONE = bytes(state for state in WITH[DISK] if not state & HOST)


class Removals:
    """The removals of blocks. Used by one thread only."""

    def __init__(
        self, ref_counts: RefCounts, pools: Pools, in_flight: InFlight, checkpoints: Checkpoints
    ) -> None:
        self.eviction_log = EvictionLog()
        self._checkpoints = checkpoints
        self._ref_counts = ref_counts
        self._pools = pools
        self._in_flight = in_flight

    def free(self, node: Node, start: int = 0) -> None:
        """Free all slots of the node's checkpoint and of its blocks from index `start` on."""
        self._checkpoints.drop(node)
        for tier, slots in node.edge.held_slots(start):
            self.free_slots(tier, slots, node.owner)

    def free_nodes(self, nodes: Iterable[Node]) -> None:
        """Free the blocks of unheld detached nodes. A node being copied is freed after the copy."""
        for node in nodes:
            if not node.transfers:
                self.free(node)

    def free_slots(self, tier: Tier, slots: BlockIds, owner: str) -> None:
        """Free slots of a tier that are charged to `owner`."""
        self._pools.give_back(tier, slots, owner)
        if tier is DISK_TIER:
            self._in_flight.erase(slots.tolist())

    def lose(self, tier: Tier, node: Node, wanted: int, owner: str, reason: Reason) -> None:
        """Drop up to `wanted` of the node's last blocks in `tier`, and all blocks after them."""
        edge = node.edge
        start, end = edge.run_in(tier)
        behind, count = edge.num_blocks - end, end - start
        if count > wanted:
            count = wanted
        self._count(tier, reason, node, count, owner)
        if node.children:
            for child in list(node.children.values()):
                self._detach(child, Reason.BEHIND, owner)
        if behind:
            self._count_from(node, end, Reason.BEHIND, owner)
        self.free(node, end - count)
        self._ref_counts.trim(node, behind + count)

    def forget_copied(self, tier: Tier, node: Node, wanted: int, owner: str) -> bool:
        """Forget in `tier` up to `wanted` of the node's last blocks, if they have slower copies.

        Returns False if no slower tier has the last block.
        """
        is_copied, start, end = last_run(tier, node, wanted)
        if is_copied:
            self.forget_copies(tier, node, start, end, owner)
        return is_copied

    def forget_copies(self, tier: Tier, node: Node, start: int, end: int, owner: str) -> None:
        """Forget the copies in `tier` of the blocks [start, end), which slower tiers have too."""
        self._forget(tier, node, slice(start, end), COPIED, owner)

    def forget_redundant(self, tier: Tier, wanted: int, owner: str = "") -> bool:
        """Forget up to `wanted` redundant copies in `tier`: their blocks have faster copies.

        Returns False if there is no such copy. Where owners are set apart, only copies of `owner`'s
        blocks are forgotten.
        """
        found = self._ref_counts.redundant[tier].choose(wanted, owner)
        if found is None:
            return False
        self._forget(tier, *found, DOUBLE)
        return True

    def forget_below(self, node: Node, tier: Tier, reason: Reason) -> None:
        """Forget the copies in `tier` of the node's blocks that also lie in a faster tier."""
        states = node.edge.states
        places = np.flatnonzero((states & BIT[tier] != 0) & (states & ABOVE[tier] != 0))
        if len(places):
            self._forget(tier, node, places, reason)

    def forget_leaf(self, node: Node) -> int:
        """Forget an attached node without children. Return the number of blocks forgotten."""
        return self._detach(node)

    def prune_all(self, found: Iterable[tuple[Node, int]], reason: Reason) -> int:
        """Forget several blocks, as `prune_from` does. Return the number that the tree forgot."""
        return sum(self.prune_from(node, position, reason) for node, position in found)

    def prune_from(self, node: Node, position: int, reason: Reason | None = None) -> int:
        """Forget the block at `position` on the path to `node`, and all blocks that follow it.

        Does nothing if the block was forgotten before. With a reason, the blocks count as evicted.
        Returns the number of blocks that the tree forgot.
        """
        return self._detach(self._from_block(node, position), reason) if node.attached else 0

    def forget_disk(self) -> int:
        """Forget all copies on disk, and the blocks without another copy."""
        nodes = [(node, node.start + node.edge.num_upper) for node in self._ref_counts.tree.nodes()]
        alone = [(node, position) for node, position in nodes if position < node.end]
        blocks = self.prune_all(alone, Reason.TIER_GONE)
        for node in self._ref_counts.tree.nodes():
            self.forget_below(node, DISK_TIER, Reason.TIER_GONE)
            if node.checkpoint is not None and DISK_TIER in node.checkpoint.copies:
                self._checkpoints.forget(self._checkpoints.tiers[DISK_TIER], node)
        return blocks

    def _detach(self, top: Node, reason: Reason | None = None, owner: str = "") -> int:
        if reason is not None:
            for node in self._ref_counts.tree.nodes(top):
                self._count_from(node, 0, reason, owner)
        if not self._checkpoints.is_empty:
            for node in self._ref_counts.tree.nodes(top):
                self._checkpoints.withdraw(node)
        blocks, unreferenced = self._ref_counts.detach(top)
        self.free_nodes(unreferenced)
        return blocks

    def _from_block(self, node: Node, block: int) -> Node:
        while node.start > block and node.parent is not None:
            node = node.parent
        if node.start < block:
            self._ref_counts.split_at(Position(node, block - node.start, block))
        return node

    def _forget(
        self, tier: Tier, node: Node, places: slice | Places, reason: Reason, owner: str = ""
    ) -> None:
        slots = node.edge.slots(tier)[places]
        count = len(slots)
        self._count(tier, reason, node, count, owner)
        if tier is DEVICE_TIER:
            self._ref_counts.evictable_blocks -= count
        self.free_slots(tier, slots, node.owner)
        device, upper = node.edge.num_device, node.edge.num_upper
        node.edge.change(places, FORGET, tier)
        if node.attached and self._ref_counts.tree.changes is not None:
            self._ref_counts.tree.changes.moved(node.edge, device, upper)
        self._ref_counts.changed(node)

    def _count_from(self, node: Node, start: int, reason: Reason, owner: str) -> None:
        for tier in self._pools.allocators:
            first, last = node.edge.run_in(tier)
            if last > max(first, start):
                self._count(tier, reason, node, last - max(first, start), owner)

    def _count(self, tier: Tier, reason: Reason, node: Node, count: int, owner: str) -> None:
        """Log `count` evicted blocks. An empty `owner` means the owner of the blocks."""
        self.eviction_log.evict(Eviction(tier, reason, node.owner, owner), count)


def last_run(tier: Tier, node: Node, wanted: int) -> tuple[bool, int, int]:
    """Return whether the last run in `tier` has usable slower copies, and the run's range.

    No block before a block in the host may lie on disk alone. So a device block before a block in
    the host is kept while its only other copy is on disk.
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
