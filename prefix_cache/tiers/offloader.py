"""The offloader, which moves KV blocks down a tier or drops them.

    the next victims of a tier                  what is done with them
    ------------------------------------------------------------------------------------
    are also stored in a slower tier, and no    forgotten here, at once
      later block lies in a faster tier
    the tier below has free slots, or blocks    copied down; forgotten here when the copy
      that the policy values less                 is whole, unless they are used meanwhile
    to disk: only if reused or retained,
      and at most `max_disk_writes` at once
    else                                        dropped, with all blocks that build on them

Where tiers are partitioned, an owner's blocks are evicted only to make room for the same owner. So
the blocks that an owner finds depend on its own requests alone.

Victims come from the ends of the tree's leaves, so the remaining blocks are always a whole prefix.
A lower tier first gives up copies of blocks that also lie in a faster tier.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.eviction.shares import PUBLISHED
from prefix_cache.tiers.eviction_log import NO_ROOM, Reason
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.removals import Removals, last_run
from prefix_cache.tiers.tier_pools import Pools, Tiers
from prefix_cache.tree.node import Node
from prefix_cache.tree.residency import DEVICE, DISK, MOVING
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER, Tier


class Offloader:
    """A component that makes room in a tier by moving or dropping blocks.

    Used by one thread only.
    """

    def __init__(
        self,
        tiers: Tiers,
        ref_counts: RefCounts,
        pools: Pools,
        removals: Removals,
        in_flight: InFlight,
    ) -> None:
        self._tiers = tiers
        self._ref_counts = ref_counts
        self._pools = pools
        self._allocators = pools.allocators
        self._device = pools.device
        self._quota_usages = pools.quota_usages
        self._removals = removals
        self._in_flight = in_flight
        self._has_lower = len(pools.allocators) > 1
        self._below: dict[Tier | None, Tier | None] = dict(pairwise([*pools.allocators, None]))

    def make_room(self, count: int, owner: str) -> bool:
        """Return whether `count` device blocks are free. If not, plan copies that free blocks.

        If the result is False and no copy is under way, all blocks are held.
        """
        if not self._has_lower:
            return self.make_room_now(count, owner, NO_ROOM)
        device, leaving = self._device, self._in_flight.leaving
        skipped: list[Node] = []
        awaited = 0  # slots in lower tiers that skipped nodes wait for
        while (wanted := count - device.num_free - leaving[DEVICE_TIER]) > 0:
            chosen = self._choose(wanted, count, owner, skipped)
            if chosen is None:
                break
            if waits := self._push_down(DEVICE_TIER, *chosen, owner, awaited):
                self._ref_counts.candidates.discard(chosen[0])
                skipped.append(chosen[0])
                awaited += waits
        self._offer_again(skipped)
        return device.num_free >= count

    def make_room_now(self, count: int, owner: str, reason: Reason = Reason.URGENT) -> bool:
        """Free `count` device blocks by dropping blocks instead of copying them."""
        while (short := count - self._device.num_free) > 0:
            chosen = self._ref_counts.candidates.choose(owner, short, count)
            if chosen is None:
                return False
            node, wanted = chosen
            copied = self._has_lower and self._removals.forget_copied(
                DEVICE_TIER, node, wanted, owner
            )
            if not copied:
                self._removals.lose(DEVICE_TIER, node, wanted, owner, reason)
        return True

    def make_ahead(self) -> None:
        """Start copies so that some device blocks are free before a request needs them.

        A partitioned device needs no such copies, because some blocks are outside all partitions.
        """
        if self._has_lower and self._tiers.ahead and not self._quota_usages[DEVICE_TIER].parts:
            self.make_room(min(self._tiers.ahead, self._device.total), "")

    def trim(self, tier: Tier, owner: str, more: int = 0) -> bool:
        """Start to evict the blocks by which `owner` would exceed its ceiling with `more` blocks.

        Blocks that sequences use stay. Returns False while copies have to end first. No later leaf
        is evicted before they end, so the choice does not depend on how long copies take.
        """
        leaves, quota_usage = self._ref_counts.leaves[tier], self._quota_usages[tier]
        while over := quota_usage.excess(owner, more):
            node = leaves.own(owner)
            if node is None:
                return not (quota_usage.parts and quota_usage.is_leaving(owner))
            if self._push_down(tier, node, over, owner):
                return False
        return True

    @property
    def may_write(self) -> bool:
        """True if another write to disk may begin now."""
        return self._in_flight.arriving[DISK_TIER] < self._tiers.max_disk_writes

    def save(self, node: Node, blocks: int) -> int:
        """Start to copy up to `blocks` blocks of `node` to disk.

        The copied blocks are the first that are not on disk, and keep their other copies. Room is
        made only by evicting blocks that lie on disk alone and that the policy values less. Returns
        the number of planned copies.
        """
        allocator, leaves = self._allocators[DISK_TIER], self._ref_counts.leaves[DISK_TIER]
        states = node.edge.states
        places = np.flatnonzero(states & (DISK | MOVING) == 0)
        most = self._tiers.max_disk_writes - self._in_flight.arriving[DISK_TIER]
        blocks = min(blocks, len(places), max(most, 0))
        if not blocks or not node.kept:
            return 0
        in_host = states[places] & DEVICE == 0
        alike = places - places[0] == np.arange(len(places))
        run = int(np.count_nonzero(np.logical_and.accumulate(alike & (in_host == in_host[0]))))
        is_apart, wanted = bool(self._quota_usages[DISK_TIER].parts), min(blocks, run)
        if not (is_apart and node.owner == PUBLISHED):  # tenants' blocks follow published blocks
            wanted = self._within_ceiling(DISK_TIER, wanted, node, False)
        while (short := wanted - allocator.num_free) > 0:
            chosen = None if is_apart else leaves.spare(node.owner, short, wanted)
            if chosen is None or not leaves.admits(node, chosen[0]):
                break
            self._removals.lose(DISK_TIER, *chosen, node.owner, NO_ROOM)
        ends = (HOST_TIER if in_host[0] else DEVICE_TIER, DISK_TIER)
        if count := min(wanted, allocator.num_free):
            slots = self._pools.take(DISK_TIER, count, node.owner)
            self._in_flight.begin(node, int(places[0]), ends, slots, for_owner=node.owner)
            self._ref_counts.withdraw(node)
        return count

    def _choose(
        self, wanted: int, count: int, owner: str, skipped: list[Node]
    ) -> tuple[Node, int] | None:
        """Choose the next victim on the device.

        While copies are under way, owners below their floors give up nothing.
        """
        leaves = self._ref_counts.leaves[DEVICE_TIER]
        chosen = leaves.spare(owner, wanted, count)
        waits = skipped or self._in_flight.leaving[DEVICE_TIER]
        if chosen is None and owner and not waits:
            chosen = leaves.choose(owner, wanted, count)
        return chosen

    def _push_down(self, tier: Tier, node: Node, wanted: int, owner: str, awaited: int = 0) -> int:
        """Free slots of the node's last blocks in `tier`, or start copies that will free them.

        Returns 0 if the slots are free or become free. Otherwise, the node waits for slots of the
        tier below, and their number is returned. Other nodes wait for `awaited` more slots there.
        """
        below = self._below[tier]
        if below is None:
            self._removals.lose(tier, node, wanted, owner, NO_ROOM)
            return 0
        is_copied, start, end = last_run(tier, node, wanted)
        if is_copied:
            self._removals.forget_copies(tier, node, start, end, owner)
            return 0
        must = end < node.edge.num_blocks or bool(node.children)
        refusal = self._refusal(below, node, must)
        if refusal is None:
            count, coming = self._room(below, end - start, node, must, owner, awaited)
            if count:
                self._begin(node, (end - count, end), (tier, below), owner)
                return 0
            if coming:
                return coming
        if node.transfers:
            return wanted
        self._removals.lose(tier, node, wanted, owner, refusal or NO_ROOM)
        return 0

    def _begin(
        self, node: Node, places: tuple[int, int], ends: tuple[Tier, Tier], owner: str
    ) -> None:
        (start, end), (source, target) = places, ends
        slots = self._pools.take(target, end - start, node.owner)
        self._quota_usages[source].leaving(node.owner, end - start)
        self._in_flight.begin(node, start, ends, slots, for_owner=owner, makes_room=True)
        self._ref_counts.withdraw(node)

    def _refusal(self, below: Tier, node: Node, must: bool) -> Reason | None:
        """Return why a node may not be copied to `below`, or None if it may.

        `must` means that blocks in lower tiers would be lost without the copy.
        """
        if not node.kept:
            return Reason.UNKEPT
        if below is HOST_TIER:
            return None
        if not self._disk_writes_left(node.owner):
            return Reason.BUSY
        is_asked_for = node.hits or node.seen or self._ref_counts.retention.keeps(node)
        return None if must or is_asked_for else Reason.UNEARNED

    def _disk_writes_left(self, owner: str) -> int:
        """Return how many more disk writes may start, within `owner`'s partition if it has one."""
        most, parts = self._tiers.max_disk_writes, self._quota_usages[DISK_TIER].parts
        if parts:
            most = math.ceil(most * parts.get(owner, 0.0)) - self._in_flight.disk_writes[owner]
        else:
            most -= self._in_flight.arriving[DISK_TIER]
        return max(most, 0)

    def _room(
        self, tier: Tier, wanted: int, node: Node, must: bool, owner: str, awaited: int
    ) -> tuple[int, int]:
        """Return the number of slots of `tier` that `node` may take now, and the number later.

        Of the slots that become free later, `awaited` are for other nodes.
        """
        if tier is DISK_TIER:
            wanted = min(wanted, self._disk_writes_left(node.owner))
        if self._quota_usages[tier].parts:
            return self._own_room(tier, wanted, node, must)
        if self._quota_usages[tier].quotas:
            wanted = self._within_ceiling(tier, wanted, node, must)
        leaves, allocator = self._ref_counts.leaves[tier], self._allocators[tier]
        leaving = self._in_flight.leaving
        while (short := wanted - allocator.num_free) > 0:
            if not self._removals.forget_redundant(tier, short):
                break
        skipped: list[Node] = []
        while (short := wanted - allocator.num_free) > leaving[tier] - awaited:
            chosen = leaves.spare(node.owner, short, wanted)
            if chosen is None or not (must or leaves.admits(node, chosen[0])):
                break
            if self._push_down(tier, *chosen, owner):
                leaves.discard(chosen[0])
                skipped.append(chosen[0])
        if skipped:
            self._offer_again(skipped)
        coming = max(leaving[tier] - awaited, 0)
        return min(wanted, allocator.num_free), min(coming, wanted)

    def _own_room(self, tier: Tier, wanted: int, node: Node, must: bool) -> tuple[int, int]:
        """Make room like `_room`, but only by evicting blocks of the node's owner.

        Blocks of the owner that are still being copied out count as held. So all partitions
        together never exceed the tier, and an owner waits only for its own copies.
        """
        quota_usage = self._quota_usages[tier]
        wanted = self._within_ceiling(tier, wanted, node, must)
        free = self._allocators[tier].num_free
        is_short = quota_usage.held[node.owner] + wanted > quota_usage.ceiling(node.owner)
        if (is_short or wanted > free) and quota_usage.is_leaving(node.owner):
            return 0, wanted
        return min(wanted, free), 0

    def _within_ceiling(self, tier: Tier, wanted: int, node: Node, must: bool) -> int:
        """Evict blocks of `node`'s owner until `wanted` slots fit its ceiling.

        Returns how many of the slots fit.
        """
        leaves, quota_usage = self._ref_counts.leaves[tier], self._quota_usages[tier]
        while over := quota_usage.excess(node.owner, wanted):
            if quota_usage.parts and self._removals.forget_redundant(tier, over, node.owner):
                continue
            victim = leaves.own(node.owner)
            if victim is None or not (must or leaves.admits(node, victim)):
                break
            if self._push_down(tier, victim, over, node.owner):
                break
        return max(wanted - over, 0)

    def _offer_again(self, skipped: list[Node]) -> None:
        for node in skipped:
            self._ref_counts.offer(node)
