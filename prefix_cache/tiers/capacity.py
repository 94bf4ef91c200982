"""The capacity of the device tier: blocks come from the free list, then from eviction.

Where there is a slower tier, evicted blocks are copied there. The end of a copy (`complete`) has
one of these outcomes:

    arrived       the blocks lie in the slower tier as well; if the copy was to make room, their
                  faster copies are forgotten, unless the blocks were used meanwhile
    failed        the target slot is free again; the node is not copied down before its next use
    lost          the copy that was read is damaged: reported to the caller
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from prefix_cache.eviction.quota_usage import OwnerUse
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.eviction.shares import PUBLISHED
from prefix_cache.tiers.checkpoints import Checkpoints
from prefix_cache.tiers.eviction_log import Reason
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.offloader import Offloader
from prefix_cache.tiers.removals import Removals
from prefix_cache.tiers.state_copies import StateCopies
from prefix_cache.tiers.tier_pools import Pools, Tiers
from prefix_cache.tree.edge import BlockIds
from prefix_cache.tree.node import Node, Partial, Position, Transfer
from prefix_cache.tree.residency import FAIL, LAND
from storage.move import DEVICE_TIER, Tier


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The usage of the device pool in blocks.

    total = free + used, and used = evictable + leased.
    """

    total: int
    free: int
    used: int
    evictable: int
    leased: int  # blocks held by leases: in the tree, private, or detached


@dataclass(frozen=True, slots=True)
class TierUse:
    """The usage of a tier below the device, in blocks."""

    total: int
    used: int  # slots that hold a block or are being filled


class Capacity:
    """The device allocator and the owners' charges, which always change together."""

    def __init__(
        self,
        num_blocks: int,
        ref_counts: RefCounts,
        tiers: Tiers,
        in_flight: InFlight,
        num_states: int = 0,
        max_running: int = 0,
    ) -> None:
        self.tiers = tiers
        self._pools = pools = Pools(num_blocks, tiers)
        self.allocator, self.allocators = pools.device, pools.allocators
        self.quota_usages = pools.quota_usages
        self._device = pools.quota_usages[DEVICE_TIER]
        self.checkpoints = Checkpoints(
            num_states, tiers, ref_counts.retention, in_flight, max_running
        )
        self.state_copies = StateCopies(self.checkpoints, ref_counts, in_flight)
        self.removals = Removals(ref_counts, pools, in_flight, self.checkpoints)
        self.offloader = Offloader(tiers, ref_counts, pools, self.removals, in_flight)
        self._ref_counts = ref_counts
        self._in_flight = in_flight

    @property
    def obtainable(self) -> int:
        """The number of device blocks that are free or evictable."""
        return self.allocator.num_free + self._ref_counts.evictable_blocks

    def pool(self) -> PoolUse:
        """Return the usage of the device pool."""
        total, free = self.allocator.total, self.allocator.num_free
        evictable = self._ref_counts.evictable_blocks
        return PoolUse(total, free, total - free, evictable, total - free - evictable)

    def lower_tiers(self) -> dict[Tier, TierUse]:
        """Return the usage of the tiers that exist below the device."""
        lower = [(tier, a) for tier, a in self.allocators.items() if tier is not DEVICE_TIER]
        return {tier: TierUse(a.total, a.total - a.num_free) for tier, a in lower}

    def owners(self) -> dict[str, OwnerUse]:
        """Count the device blocks and evictions of each owner that has any."""
        held, counts = self._device.held, self.removals.eviction_log
        return {
            owner: OwnerUse(held.get(owner, 0), counts.caused[owner], counts.suffered[owner])
            for owner in sorted({*held, *counts.caused, *counts.suffered})
        }

    def take(self, count: int, owner: str) -> BlockIds:
        """Take `count` free blocks. The caller has made room for them."""
        return self._pools.take(DEVICE_TIER, count, owner)

    def take_now(self, count: int, owner: str) -> BlockIds | None:
        """Take `count` blocks without waiting, after dropping cached blocks if needed.

        Returns None if too few blocks can be freed. In partitioned tiers, the owner's blocks are
        copied down instead of dropped.
        """
        if count > self.obtainable:
            return None
        if self.is_partitioned(owner):
            is_free = self.make_own_room({owner: count})
        else:
            is_free = self.offloader.make_room_now(count, owner)
        return self.take(count, owner) if is_free else None

    def is_partitioned(self, owner: str) -> bool:
        """Return whether `owner` is limited to a partition of each tier."""
        return bool(self._device.parts) and owner != PUBLISHED

    @property
    def is_still(self) -> bool:
        """True if no copy between tiers is under way."""
        return not len(self._in_flight)

    def is_leaving(self, owner: str) -> bool:
        """Return whether blocks or recurrent states of `owner` are leaving a tier."""
        is_leaving = any(one.is_leaving(owner) for one in self.quota_usages.values())
        return is_leaving or self.state_copies.is_copied_down(owner)

    def is_coming(self, count: int) -> bool:
        """Return whether `count` device blocks are free or become free once copies have ended."""
        free = self.allocator.num_free
        if self._device.parts:
            return count <= free + sum(self._in_flight.leaving.values())
        return count <= free + self._ref_counts.evictable_blocks

    def keepable(self, partial: Partial | None, count: int) -> Partial | None:
        """Return the partial match, or None if its block leaves no room for `count` blocks."""
        if partial is None:
            return None
        kept = self._ref_counts.cost(Position.after(partial.node))
        return partial if count <= self.obtainable - kept else None

    def make_room(self, count: int, owner: str, beside: Partial | None) -> bool:
        """Evict until `count` blocks are free, and return whether they are free.

        The block of `beside` is not evicted. After False, planned copies may still free blocks.
        """
        if count <= self.allocator.num_free:
            return True
        if beside is None:
            return self.offloader.make_room(count, owner)
        self._ref_counts.inc_ref(beside.node)
        enough = self.offloader.make_room(count, owner)
        self._ref_counts.dec_ref(beside.node)
        return enough

    def make_own_room(self, needs: Mapping[str, int]) -> bool:
        """Evict blocks of owners whose needs exceed their partitions.

        Blocks are evicted even if other blocks are free. So the blocks that an owner keeps do not
        depend on other owners. Returns whether all needed blocks are free now.
        """
        is_done = [self.offloader.trim(DEVICE_TIER, owner, more) for owner, more in needs.items()]
        return all(is_done) and sum(needs.values()) <= self.allocator.num_free

    def give_back(self, ids: BlockIds, owner: str) -> None:
        """Free blocks that are charged to `owner`."""
        self._pools.give_back(DEVICE_TIER, ids, owner)

    def placed(self, node: Node, count: int, owner: str) -> None:
        """Move the charge for new blocks of `node` from `owner` to the node's owner."""
        self._device.charge(owner, -count)
        self._device.charge(node.owner, count)
        self.landed(node)

    def adopt(self, node: Node, owner: str) -> None:
        """Charge the blocks of `node` and of all its ancestors to `owner` from now on.

        All blocks are on the device and not being copied (`may_adopt`). Disk records are sealed for
        their former owners, so this method forgets the blocks' records.
        """
        for current in node.way_up():
            if current.owner == owner:
                continue
            for noted in self._ref_counts.redundant.values():
                noted.discard(current)
            self.removals.forget_below(current, Tier.DISK, Reason.DOUBLE)
            for tier, quota_usage in self.quota_usages.items():
                blocks = len(current.edge.held_slots_in(tier))
                quota_usage.charge(current.owner, -blocks)
                quota_usage.charge(owner, blocks)
            before = current.owner
            self.checkpoints.withdraw(current)
            self._ref_counts.tree.give(current, owner)
            current.retained_until = 0.0
            self.checkpoints.adopted(current, before)
            self._ref_counts.note_redundant(current)

    def may_adopt(self, node: Node, owner: str) -> bool:
        """Return whether no block of another owner, up to the end of `node`, is being copied."""
        return not any(one.transfers and one.owner != owner for one in node.way_up())

    def took_on_disk(self, taken: Iterable[int], erased: Iterable[int]) -> None:
        """Reserve the disk slots that the tree uses after a start. Plan to erase other slots."""
        slots = np.array(list(taken), dtype=np.int32)
        self.allocators[Tier.DISK].reserve(slots)
        self._in_flight.erase(erased)

    def complete(self, transfer: Transfer) -> list[tuple[Node, int]]:
        """Apply a transfer to a slower tier, all of whose copies have ended.

        Returns the blocks whose source is damaged, as nodes and positions.
        """
        self._in_flight.close(transfer)
        if transfer.makes_room:
            owner, blocks = transfer.nodes[0].owner, transfer.end - transfer.start
            self.quota_usages[transfer.source].leaving(owner, -blocks)
        # the last blocks come first, as in eviction
        for node, start, end in reversed(transfer.parts()):
            node.transfers.remove(transfer)
            self._land(transfer, node, start, end)
            self._ref_counts.note_redundant(node)
            if not self._vacate(transfer, node, start, end):
                self._stands_still(node)
        if not transfer.lost:
            return []
        return [(transfer.node_at(position), position) for position in sorted(transfer.lost)]

    def landed(self, node: Node) -> None:
        """Update the node after copies of some of its blocks have ended."""
        self._ref_counts.note_redundant(node)
        self._stands_still(node)

    def _stands_still(self, node: Node) -> None:
        self._ref_counts.changed(node)
        if not node.attached and not node.is_held:
            self.removals.free_nodes([node])

    def _land(self, transfer: Transfer, node: Node, start: int, end: int) -> None:
        log = self.removals.eviction_log
        if not transfer.missed:
            node.edge.change(slice(start, end), LAND, transfer.target)
            log.written[transfer.target] += end - start
            return
        missed = {position - node.start for position in transfer.missed}
        landed = np.array([at for at in range(start, end) if at not in missed], dtype=np.intp)
        failed = np.array([at for at in range(start, end) if at in missed], dtype=np.intp)
        node.edge.change(landed, LAND, transfer.target)
        log.written[transfer.target] += len(landed)
        if len(failed):
            node.edge.change(failed, FAIL, transfer.target)
            slots = node.edge.slots(transfer.target)[failed]
            self.removals.free_slots(transfer.target, slots, node.owner)
            log.failed[transfer.target] += len(failed)
            node.kept = False

    def _vacate(self, transfer: Transfer, node: Node, start: int, end: int) -> bool:
        """Forget blocks [start, end) in the source tier unless they are used or copied again.

        Returns False if nothing was forgotten.
        """
        source, owner = transfer.source, transfer.for_owner
        comes_back = any(one.target is DEVICE_TIER for one in node.transfers)
        is_used = node.leases or node.held_children or comes_back
        may_go = transfer.makes_room and node.attached and not is_used
        if not may_go or (node.device_children if source is DEVICE_TIER else node.upper_children):
            return False
        first, last = node.edge.run_in(source)
        start = max(start, first)
        if last == end and not transfer.missed:
            self.removals.forget_copies(source, node, start, end, owner)
            return True
        return start < last and self.removals.forget_copied(source, node, last - start, owner)
