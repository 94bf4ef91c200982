"""How blocks go down: from the device to the host, from there to disk, or out.

    the blocks of a tier that go first          what becomes of them
    ------------------------------------------------------------------------------------
    lie in a slower tier as well, and those     forgotten here, at once
      behind them in none that is faster
    the tier below has room, or something       copied down; forgotten here when the copy
      that the policy would rather lose           is whole, unless they are used meanwhile
    to disk: only if they have been reused,
      and never more at once than it writes
    else                                        dropped, and all that builds on them

Room is made from the tail of the tree's leaves, so what is left is always a whole prefix. A tier
below gives up copies of blocks that lie higher before anything else: they are worth nothing as
long as the higher ones are there.

Knows: which blocks go, and where to. Does not know: leases, what a block's going changes
(`losses`), what follows when a copy has ended (`landing`), or how blocks come back (`ascent`).
"""

from __future__ import annotations

import numpy as np

from prefix_cache.allocator import BlockIds
from prefix_cache.holds import Holds
from prefix_cache.losses import Losses, last_run
from prefix_cache.node import Node
from prefix_cache.residency import DEVICE, DISK, MOVING
from prefix_cache.shelf import Pools, Shelf, Tiers
from prefix_cache.traffic import NO_ROOM, Reason
from prefix_cache.transit import Transit
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER, Tier


class Descent:
    """Makes room in a tier. One owner thread."""

    def __init__(
        self, tiers: Tiers, holds: Holds, pools: Pools, losses: Losses, transit: Transit
    ) -> None:
        self._tiers = tiers
        self._holds = holds
        self._shelves = pools.shelves
        self._device = pools.device
        self._standings = pools.standings
        self._losses = losses
        self._transit = transit
        host, disk = pools.shelves.get(HOST_TIER), pools.shelves.get(DISK_TIER)
        self._below = {DEVICE_TIER: host or disk, HOST_TIER: disk, DISK_TIER: None}

    def make_room(self, count: int, owner: str) -> bool:
        """Whether `count` device blocks are free; if not, copies that will free some are begun.

        Where it is False and no copy is under way, all that could be evicted is held.
        """
        if not self._shelves:
            return self._make_room_now(count, owner, NO_ROOM)
        device, leaving = self._device, self._transit.leaving
        skipped: list[Node] = []
        awaited = 0  # slots below that skipped nodes wait for
        while (wanted := count - device.num_free - leaving[DEVICE_TIER]) > 0:
            chosen = self._choose(wanted, count, owner, skipped)
            if chosen is None:
                break
            if waits := self._push_down(DEVICE_TIER, *chosen, owner, awaited):
                self._holds.candidates.discard(chosen[0])
                skipped.append(chosen[0])
                awaited += waits
        self._offer_again(skipped)
        return device.num_free >= count

    def make_room_now(self, count: int, owner: str) -> bool:
        """Like `make_room`, but drops blocks instead of waiting for them to be copied down."""
        return self._make_room_now(count, owner, Reason.URGENT)

    def make_ahead(self) -> None:
        """Begin copies so that some device blocks are free before anybody asks for them."""
        if self._shelves and self._tiers.ahead:
            self.make_room(min(self._tiers.ahead, self._device.total), "")

    def keep_to_ceiling(self, tier: Tier, owner: str) -> None:
        """Begin to evict what `owner` holds over its ceiling, as far as no sequence uses it."""
        leaves, standing = self._holds.leaves[tier], self._standings[tier]
        skipped: list[Node] = []
        awaited = 0
        while over := standing.excess(owner):
            node = leaves.own(owner)
            if node is None:
                break
            if waits := self._push_down(tier, node, over, owner, awaited):
                leaves.discard(node)
                skipped.append(node)
                awaited += waits
        self._offer_again(skipped)

    def save(self, node: Node, blocks: int) -> int:
        """Begin to copy up to `blocks` blocks of `node` to disk, the first ones that are not there.

        They stay where they are. On disk only blocks are evicted for them that lie nowhere else and
        that the policy values less. Returns how many copies were begun.
        """
        shelf, states = self._shelves[DISK_TIER], node.edge.states
        places = np.flatnonzero(states & (DISK | MOVING) == 0)
        blocks = min(blocks, len(places), self._disk_writes_left())
        if not blocks or not node.kept:
            return 0
        in_host = states[places] & DEVICE == 0
        alike = places - places[0] == np.arange(len(places))
        run = int(np.count_nonzero(np.logical_and.accumulate(alike & (in_host == in_host[0]))))
        wanted = self._within_ceiling(shelf, min(blocks, run), node, False)
        while (short := wanted - shelf.allocator.num_free) > 0:
            chosen = shelf.leaves.spare(node.owner, short, wanted)
            if chosen is None or not shelf.leaves.admits(node, chosen[0]):
                break
            self._losses.lose(DISK_TIER, *chosen, node.owner, NO_ROOM)
        slots = shelf.allocator.allocate(min(wanted, shelf.allocator.num_free))
        ends = (HOST_TIER if in_host[0] else DEVICE_TIER, DISK_TIER)
        if len(slots):
            self._standings[DISK_TIER].charge(node.owner, len(slots))
            self._transit.begin(node, int(places[0]), ends, slots, for_owner=node.owner)
            self._holds.withdraw(node)
        return len(slots)

    def _make_room_now(self, count: int, owner: str, reason: Reason) -> bool:
        while (short := count - self._device.num_free) > 0:
            chosen = self._holds.candidates.choose(owner, short, count)
            if chosen is None:
                return False
            node, wanted = chosen
            copied = bool(self._shelves) and self._losses.forget_copied(
                DEVICE_TIER, node, wanted, owner
            )
            if not copied:
                self._losses.lose(DEVICE_TIER, node, wanted, owner, reason)
        return True

    def _choose(
        self, wanted: int, count: int, owner: str, skipped: list[Node]
    ) -> tuple[Node, int] | None:
        """Whose device blocks go next. Before floors are broken copies under way have to end."""
        leaves = self._holds.leaves[DEVICE_TIER]
        chosen = leaves.spare(owner, wanted, count)
        waits = skipped or self._transit.leaving[DEVICE_TIER]
        if chosen is None and owner and not waits:
            chosen = leaves.choose(owner, wanted, count)
        return chosen

    def _push_down(self, tier: Tier, node: Node, wanted: int, owner: str, awaited: int = 0) -> int:
        """Free slots of the node's last blocks in `tier`, or begin to: then 0 is returned.

        Else the node stays as it is, and waits for so many slots of the tier below that are being
        vacated. `awaited` of these are spoken for, by other nodes that wait.
        """
        below = self._below[tier]
        if below is None:
            self._losses.lose(tier, node, wanted, owner, NO_ROOM)
            return 0
        is_copied, start, end = last_run(tier, node, wanted)
        if is_copied:
            self._losses.forget_copies(tier, node, start, end, owner)
            return 0
        must = end < node.edge.num_blocks or bool(node.children)
        refusal = self._refusal(below, node, must)
        if refusal is None:
            slots, coming = self._room(below, end - start, node, must, owner, awaited)
            if len(slots):
                self._begin(node, end - len(slots), (tier, below.tier), slots, owner)
                return 0
            if coming:
                return coming
        self._losses.lose(tier, node, wanted, owner, refusal or NO_ROOM)
        return 0

    def _begin(
        self, node: Node, place: int, ends: tuple[Tier, Tier], slots: BlockIds, owner: str
    ) -> None:
        """Copy the blocks from `place` on down to `slots`, to make room for `owner`."""
        (source, target), count = ends, len(slots)
        self._standings[target].charge(node.owner, count)
        self._standings[source].leaving(node.owner, count)
        self._transit.begin(node, place, ends, slots, for_owner=owner, makes_room=True)
        self._holds.withdraw(node)

    def _refusal(self, below: Shelf, node: Node, must: bool) -> Reason | None:
        """Why a node may not go down. `must`: others that lie lower would be lost with it.

        The host takes any block; the disk takes blocks that were asked for twice, and only while
        it has few writes under way.
        """
        if not node.kept:
            return Reason.UNKEPT
        if below.tier is HOST_TIER:
            return None
        if not self._disk_writes_left():
            return Reason.BUSY
        return None if must or node.hits or node.seen else Reason.UNEARNED

    def _disk_writes_left(self) -> int:
        return max(self._tiers.max_disk_writes - self._transit.arriving[DISK_TIER], 0)

    def _room(
        self, shelf: Shelf, wanted: int, node: Node, must: bool, owner: str, awaited: int
    ) -> tuple[BlockIds, int]:
        """Up to `wanted` slots of `shelf` for `node`, and how many will come without asking.

        What comes is counted on once: `awaited` slots of it are for others.
        """
        if shelf.tier is DISK_TIER:
            wanted = min(wanted, self._disk_writes_left())
        if self._standings[shelf.tier].quotas:
            wanted = self._within_ceiling(shelf, wanted, node, must)
        leaves, allocator, leaving = shelf.leaves, shelf.allocator, self._transit.leaving
        while (short := wanted - allocator.num_free) > 0:
            if not self._losses.forget_doubles(shelf, short):
                break
        skipped: list[Node] = []
        while (short := wanted - allocator.num_free) > leaving[shelf.tier] - awaited:
            chosen = leaves.spare(node.owner, short, wanted)
            if chosen is None or not (must or leaves.admits(node, chosen[0])):
                break
            if self._push_down(shelf.tier, *chosen, owner):
                leaves.discard(chosen[0])
                skipped.append(chosen[0])
        if skipped:
            self._offer_again(skipped)
        slots = allocator.allocate(min(wanted, allocator.num_free))
        return slots, min(max(leaving[shelf.tier] - awaited, 0), wanted)

    def _within_ceiling(self, shelf: Shelf, wanted: int, node: Node, must: bool) -> int:
        """How many of `wanted` slots `node`'s owner may take, after giving up some of its own."""
        standing = self._standings[shelf.tier]
        while over := standing.excess(node.owner, wanted):
            victim = shelf.leaves.own(node.owner)
            if victim is None or not (must or self._holds.policy.admits(node, victim)):
                break
            if self._push_down(shelf.tier, victim, over, node.owner):
                break
        return max(wanted - over, 0)

    def _offer_again(self, skipped: list[Node]) -> None:
        for node in skipped:
            self._holds.offer(node)
