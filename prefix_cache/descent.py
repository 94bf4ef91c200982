"""How blocks go down: from the device to the host, from there to disk, or out.

    the blocks of a tier that go first          what becomes of them
    ------------------------------------------------------------------------------------
    lie in a slower tier as well                forgotten here, at once
    the tier below has room, or something       copied down; forgotten here when the copy
      that the policy would rather lose           is whole, unless they are used meanwhile
    to disk: only if they have been reused
    else                                        dropped, and all that builds on them

Room is made from the tail of the tree's leaves, so what is left is always a whole prefix. A tier
below gives up copies of blocks that lie higher before anything else: they are worth nothing as
long as the higher ones are there.

Knows: tiers, slots, who pays. Does not know: leases, or how blocks come back (`ascent`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from prefix_cache.allocator import BlockAllocator, BlockIds
from prefix_cache.holds import Holds
from prefix_cache.owners import OwnerBooks
from prefix_cache.residency import BIT, DISK, HOST, RESIDENT, Event
from prefix_cache.shelf import Shelf, Tiers
from prefix_cache.traffic import Traffic
from prefix_cache.transit import Transit
from prefix_cache.tree import Flight, Node
from storage.move import Tier

SLOWER = {Tier.DEVICE: HOST | DISK, Tier.HOST: DISK, Tier.DISK: 0}


class Descent:
    """Makes room in a tier. One owner thread."""

    def __init__(
        self,
        tiers: Tiers,
        holds: Holds,
        allocator: BlockAllocator,
        books: OwnerBooks,
        transit: Transit,
    ) -> None:
        sizes = {Tier.HOST: tiers.host_blocks, Tier.DISK: tiers.disk_blocks}
        self.shelves = {t: Shelf(t, n, holds.leaves[t]) for t, n in sizes.items() if n}
        self.traffic = Traffic()
        self._tiers = tiers
        self._holds = holds
        self._device = allocator
        self._books = books
        self._transit = transit

    def make_room(self, count: int, owner: str) -> bool:
        """Whether `count` device blocks are free; if not, copies that will free some are begun.

        False without a copy under way: what could go is held.
        """
        skipped: list[Node] = []
        while (short := count - self._device.num_free) > self._transit.leaving(Tier.DEVICE):
            node = self._holds.candidates.first()
            if node is None:
                break
            wanted = short - self._transit.leaving(Tier.DEVICE)
            if not self._push_down(Tier.DEVICE, node, wanted, owner):
                self._holds.candidates.discard(node)
                skipped.append(node)
        self._offer_again(skipped)
        return self._device.num_free >= count

    def make_room_now(self, count: int, owner: str) -> bool:
        """Like `make_room`, but rather loses blocks than waits for copies of them."""
        while (short := count - self._device.num_free) > 0:
            node = self._holds.candidates.first()
            if node is None:
                return False
            if not self._forget_copied(Tier.DEVICE, node, short, owner):
                self._lose(Tier.DEVICE, node, short, owner)
        return True

    def settle(self, flight: Flight, *, landed: bool) -> None:
        """A copy to a slower tier is whole, or has come to nothing: the block is where it was."""
        node, at, target = flight.node, flight.index, flight.move.target_tier
        node.flights.remove(flight)
        node.edge.change(at, at + 1, Event.LAND if landed else Event.FAIL, target)
        if landed:
            self.traffic.written[target] += 1
            self.shelves[target].note_doubles(node)
        else:
            self.shelves[target].allocator.free(_one(flight.move.target))
            node.kept = False
        if not node.flights:
            self._vacate(flight)

    def forget_lost(self, flight: Flight) -> bool:
        """Forget a copy that could not be read; False: it is the last one."""
        node, at, tier = flight.node, flight.index, flight.move.source_tier
        self.traffic.lost[tier] += 1
        if node.edge.states[at] & RESIDENT == BIT[tier]:
            return False
        self._forget(tier, node, at, at + 1)
        return True

    def free(self, node: Node, start: int = 0) -> None:
        """Take back all slots of the node's blocks from `start` on, on every tier."""
        edge = node.edge
        device = edge.held_slots(Tier.DEVICE, start)
        self._device.free(device)
        self._books.gave_back(node.owner, len(device))
        for tier, shelf in self.shelves.items():
            slots = edge.held_slots(tier, start)
            shelf.allocator.free(slots)
            if tier is Tier.DISK:
                self._transit.erase(slots)

    def free_nodes(self, nodes: Iterable[Node]) -> None:
        """Free the blocks of nodes in nobody's reach; where one is being copied, after that."""
        for node in nodes:
            if not node.flights:
                self.free(node)

    def _push_down(self, tier: Tier, node: Node, wanted: int, owner: str) -> bool:
        """Free slots of the node's last blocks in `tier`, or begin to; False: not now."""
        if not self.shelves:
            self._lose(tier, node, wanted, owner)
            return True
        if self._forget_copied(tier, node, wanted, owner):
            return True
        start, end = self._not_copied(tier, node, wanted)
        below = self._shelf_below(tier)
        must = end < len(node.edge) or len(node.children) > 0
        if below is not None and node.kept and self._earns(below, node, must):
            slots, waiting = self._room(below, end - start, node, must, owner)
            if len(slots):
                self._transit.begin(node, end - len(slots), tier, below.tier, slots, owner)
                self._holds.changed(node)
                return True
            if waiting:
                return False
        self._lose(tier, node, wanted, owner)
        return True

    def _earns(self, shelf: Shelf, node: Node, must: bool) -> bool:
        """Host memory is for all; disk is for what was asked for twice, and never in a queue."""
        if shelf.tier is Tier.HOST:
            return True
        busy = self._transit.arriving(Tier.DISK) >= self._tiers.max_disk_writes
        if busy or not (must or node.hits or node.seen):
            self.traffic.refused[Tier.DISK] += 1
            return False
        return True

    def _room(
        self, shelf: Shelf, wanted: int, node: Node, must: bool, owner: str
    ) -> tuple[BlockIds, bool]:
        """Up to `wanted` slots of `shelf` for `node`, and whether more will come without asking."""
        if shelf.tier is Tier.DISK:
            wanted = min(wanted, self._tiers.max_disk_writes - self._transit.arriving(Tier.DISK))
        skipped: list[Node] = []
        while (short := wanted - shelf.allocator.num_free) > 0:
            if self._forget_doubles(shelf, short):
                continue
            victim = shelf.leaves.first()
            if short <= self._transit.leaving(shelf.tier) or victim is None:
                break
            if not must and not self._holds.policy.admits(node, victim):
                break
            if not self._push_down(shelf.tier, victim, short, owner):
                shelf.leaves.discard(victim)
                skipped.append(victim)
        self._offer_again(skipped)
        slots = shelf.allocator.allocate(min(wanted, shelf.allocator.num_free))
        return slots, self._transit.leaving(shelf.tier) > 0

    def _forget_doubles(self, shelf: Shelf, wanted: int) -> bool:
        found = shelf.doubles(wanted)
        if found is None:
            return False
        node, places = found
        for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            self._forget(shelf.tier, node, int(run[0]), int(run[-1]) + 1)
        return True

    def _forget_copied(self, tier: Tier, node: Node, wanted: int, owner: str) -> bool:
        """Forget up to `wanted` of the node's last blocks in `tier` that lie in a slower one."""
        start, end = _run_in(tier, node)
        copied = node.edge.states[start:end] & SLOWER[tier] != 0
        length = _trailing(copied[-wanted:])
        if length:
            self._forget(tier, node, end - length, end, owner)
        return length > 0

    def _not_copied(self, tier: Tier, node: Node, wanted: int) -> tuple[int, int]:
        start, end = _run_in(tier, node)
        copied = node.edge.states[start:end] & SLOWER[tier] != 0
        return end - _trailing(~copied[-wanted:]), end

    def _lose(self, tier: Tier, node: Node, wanted: int, owner: str) -> None:
        """Drop up to `wanted` of the node's last blocks in `tier`, and all behind them."""
        start, end = _run_in(tier, node)
        count = min(wanted, end - start)
        if tier is Tier.DEVICE:
            self._charge(node, count, owner)
        for child in list(node.children):
            blocks, nobodys = self._holds.detach(child)
            self.free_nodes(nobodys)
            self.traffic.dropped[tier] += blocks
        behind = len(node.edge) - (end - count)
        self.traffic.dropped[tier] += behind
        self.free(node, end - count)
        self._holds.trim(node, behind)

    def _forget(self, tier: Tier, node: Node, start: int, end: int, owner: str = "") -> None:
        slots = node.edge.slots(tier)[start:end].copy()
        if tier is Tier.DEVICE:
            self._holds.evictable_blocks -= end - start
            self._charge(node, end - start, owner)
            self._books.gave_back(node.owner, end - start)
            self._device.free(slots)
        else:
            self.shelves[tier].allocator.free(slots)
        if tier is Tier.DISK:
            self._transit.erase(slots)
        node.edge.change(start, end, Event.FORGET, tier)
        self._holds.changed(node)

    def _charge(self, node: Node, count: int, owner: str) -> None:
        """`owner` "" is nobody: the block's own owner counts on both sides."""
        self._books.evicted(for_owner=owner or node.owner, of_owner=node.owner, blocks=count)

    def _vacate(self, flight: Flight) -> None:
        """The last of a node's copies has ended: forget the blocks that were to go."""
        node, tier = flight.node, flight.move.source_tier
        if not node.attached:
            if not node.is_held:
                self.free(node)
            return
        self._holds.changed(node)
        if not node.is_held and node.is_tail(tier):
            start, end = _run_in(tier, node)
            wanted = end - max(flight.first - node.start, start)
            if wanted > 0:
                self._forget_copied(tier, node, wanted, flight.for_owner)

    def _shelf_below(self, tier: Tier) -> Shelf | None:
        if tier is Tier.DEVICE and Tier.HOST in self.shelves:
            return self.shelves[Tier.HOST]
        return None if tier is Tier.DISK else self.shelves.get(Tier.DISK)

    def _offer_again(self, skipped: list[Node]) -> None:
        for node in skipped:
            self._holds.offer(node)


def _run_in(tier: Tier, node: Node) -> tuple[int, int]:
    """The places of the node's blocks that lie in `tier` and in none above it."""
    edge = node.edge
    if tier is Tier.DEVICE:
        return 0, edge.num_device
    return (edge.num_device, edge.num_upper) if tier is Tier.HOST else (edge.num_upper, len(edge))


def _trailing(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """How many of the last flags, without a gap, are set."""
    wrong = np.flatnonzero(~flags)
    return len(flags) - (int(wrong[-1]) + 1 if len(wrong) else 0)


def _one(slot: int) -> BlockIds:
    return np.array([slot], dtype=np.int32)
