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

Knows: tiers, slots, who pays. Does not know: leases, or how blocks come back (`ascent`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from prefix_cache.allocator import BlockAllocator, BlockIds
from prefix_cache.edge import Places
from prefix_cache.holds import Holds
from prefix_cache.ledger import Ledger
from prefix_cache.owners import OwnerBooks
from prefix_cache.residency import BIT, DEVICE, DISK, HOST, MOVING, Event, flags, trailing
from prefix_cache.shelf import ABOVE, Shelf, Tiers
from prefix_cache.standing import Standing
from prefix_cache.traffic import Eviction, Reason, Traffic
from prefix_cache.transit import Transit
from prefix_cache.tree import Flight, Node
from storage.move import Tier


class Descent:
    """Makes room in a tier. One owner thread."""

    def __init__(
        self,
        tiers: Tiers,
        holds: Holds,
        allocator: BlockAllocator,
        books: OwnerBooks,
        transit: Transit,
        standings: Mapping[Tier, Standing],
    ) -> None:
        sizes = {Tier.HOST: tiers.host_blocks, Tier.DISK: tiers.disk_blocks}
        self.shelves = {t: Shelf(t, n, holds) for t, n in sizes.items() if n}
        self.traffic = Traffic()
        self.ledger = Ledger()
        self._tiers = tiers
        self._holds = holds
        self._device = allocator
        self._books = books
        self._standings = standings
        self._transit = transit

    def make_room(self, count: int, owner: str) -> bool:
        """Whether `count` device blocks are free; if not, copies that will free some are begun.

        False without a copy under way: what could go is held.
        """
        if not self.shelves:
            return self._make_room_now(count, owner, Reason.NO_ROOM)
        skipped: list[Node] = []
        while (short := count - self._device.num_free) > self._transit.leaving(Tier.DEVICE):
            chosen = self._choose(short - self._transit.leaving(Tier.DEVICE), count, owner, skipped)
            if chosen is None:
                break
            node, wanted = chosen
            if not self._push_down(Tier.DEVICE, node, wanted, owner):
                self._holds.candidates.discard(node)
                skipped.append(node)
        self._offer_again(skipped)
        return self._device.num_free >= count

    def make_room_now(self, count: int, owner: str) -> bool:
        """Like `make_room`, but rather loses blocks than waits for copies of them."""
        return self._make_room_now(count, owner, Reason.URGENT)

    def make_ahead(self) -> None:
        """Begin copies so that some device blocks are free before anybody asks for them."""
        if self.shelves and self._tiers.ahead:
            self.make_room(min(self._tiers.ahead, self._device.total), "")

    def keep_to_ceiling(self, tier: Tier, owner: str) -> None:
        """Begin to let go of what `owner` holds over its ceiling and no sequence of it uses."""
        leaves, standing = self._holds.leaves[tier], self._standings[tier]
        skipped: list[Node] = []
        while over := standing.excess(owner):
            node = leaves.own(owner)
            if node is None:
                break
            if not self._push_down(tier, node, over, owner):
                leaves.discard(node)
                skipped.append(node)
        self._offer_again(skipped)

    def settle(self, flight: Flight) -> list[tuple[Node, int]]:
        """All copies of a flight to a slower tier have ended; each that did not land has failed.

        Returns where blocks were found to be no good, as nodes and positions.
        """
        self._transit.close(flight)
        for node, start, end in flight.parts():
            node.flights.remove(flight)
            self._land(flight, node, start, end)
            self._note_doubles(node)
        if flight.makes_room:
            owner, blocks = flight.nodes[0].owner, flight.end - flight.start
            self._standings[flight.source].leaving(owner, -blocks)
        for node in reversed(flight.nodes):  # what is vacated has been offered anew by that
            if not self._vacate(flight, node):
                self._stands_still(node)
        return [(flight.node_at(position), position) for position in sorted(flight.lost)]

    def settled(self, node: Node) -> None:
        """A copy of some of the node's blocks has ended, whichever way it went."""
        self._note_doubles(node)
        self._stands_still(node)

    def free(self, node: Node, start: int = 0) -> None:
        """Take back all slots of the node's blocks from `start` on, on every tier."""
        edge = node.edge
        alone = not self.shelves  # then all blocks are on the device
        device = edge.block_ids[start:] if alone else edge.held_slots(Tier.DEVICE, start)
        self._device.free(device)
        self._books.gave_back(node.owner, len(device))
        for tier in self.shelves:
            self._free_slots(tier, edge.held_slots(tier, start), node.owner)

    def free_nodes(self, nodes: Iterable[Node]) -> None:
        """Free the blocks of nodes in nobody's reach; where one is being copied, after that."""
        for node in nodes:
            if not node.flights:
                self.free(node)

    def forget_below(self, node: Node, tier: Tier) -> None:
        """Forget the copies in a lower tier of those of the node's blocks that lie higher too."""
        states = node.edge.states
        places = np.flatnonzero((states & BIT[tier] != 0) & (states & ABOVE[tier] != 0))
        if len(places):
            self._forget(tier, node, places, Reason.TIER_GONE)

    def found_on_disk(self, owner: str, blocks: int) -> None:
        """After a start: some of what the disk holds is `owner`'s."""
        self._standings[Tier.DISK].charge(owner, blocks)

    def took_on_disk(self, taken: Iterable[int], erased: Iterable[int]) -> None:
        """After a start: which slots are the tree's, and which hold what nobody will find."""
        slots = np.array(list(taken), dtype=np.int32)
        self.shelves[Tier.DISK].allocator.reserve(slots)
        self._transit.erase(np.array(list(erased), dtype=np.int32))

    def count_gone(self, top: Node, reason: Reason, owner: str = "") -> None:
        """A subtree is about to leave the cache with all that builds on it."""
        for node in self._holds.subtree(top):
            self._count_from(node, 0, reason, owner)

    def save(self, node: Node, blocks: int) -> int:
        """Begin to copy up to `blocks` blocks of `node` to disk, the first ones that are not there.

        They stay where they are. Nothing on disk gives way but what is there alone, and goes
        before `node` anyway. Returns how many copies have been begun.
        """
        shelf, states = self.shelves[Tier.DISK], node.edge.states
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
            self._lose(Tier.DISK, *chosen, node.owner, Reason.NO_ROOM)
        slots = shelf.allocator.allocate(min(wanted, shelf.allocator.num_free))
        ends = (Tier.HOST if in_host[0] else Tier.DEVICE, Tier.DISK)
        if len(slots):
            self._standings[Tier.DISK].charge(node.owner, len(slots))
            self._transit.begin(node, int(places[0]), ends, slots, for_owner=node.owner)
            self._holds.changed(node)
        return len(slots)

    def _make_room_now(self, count: int, owner: str, reason: Reason) -> bool:
        while (short := count - self._device.num_free) > 0:
            chosen = self._holds.candidates.choose(owner, short, count)
            if chosen is None:
                return False
            node, wanted = chosen
            copied = bool(self.shelves) and self._forget_copied(Tier.DEVICE, node, wanted, owner)
            if not copied:
                self._lose(Tier.DEVICE, node, wanted, owner, reason)
        return True

    def _choose(
        self, wanted: int, count: int, owner: str, skipped: list[Node]
    ) -> tuple[Node, int] | None:
        """Whose device blocks go next. Before floors are broken copies under way have to end."""
        leaves = self._holds.candidates
        chosen = leaves.spare(owner, wanted, count)
        waits = len(skipped) > 0 or self._transit.leaving(Tier.DEVICE) > 0
        if chosen is None and owner and not waits:
            chosen = leaves.choose(owner, wanted, count)
        return chosen

    def _push_down(self, tier: Tier, node: Node, wanted: int, owner: str) -> bool:
        """Free slots of the node's last blocks in `tier`, or begin to; False: not now."""
        may_go = _may_go(tier, node, wanted)
        if self._forget_last(tier, node, trailing(may_go), owner):
            return True
        end = node.edge.run_in(tier)[1]
        below = self._shelf_below(tier)
        must = end < len(node.edge) or len(node.children) > 0
        refusal = self._refusal(below, node, must)
        if below is not None and refusal is None:
            length = trailing(may_go, b"\0")
            slots, waiting = self._room(below, length, node, must, owner)
            if len(slots):
                place, ends = end - len(slots), (tier, below.tier)
                self._standings[below.tier].charge(node.owner, len(slots))
                self._standings[tier].leaving(node.owner, len(slots))
                self._transit.begin(node, place, ends, slots, for_owner=owner, makes_room=True)
                self._holds.changed(node)
                return True
            if waiting:
                return False
        self._lose(tier, node, wanted, owner, refusal or Reason.NO_ROOM)
        return True

    def _refusal(self, below: Shelf | None, node: Node, must: bool) -> Reason | None:
        """Why a node may not go down. `must`: others that lie lower would be lost with it.

        Host memory is for all; disk is for what was asked for twice, and never in a queue.
        """
        if below is None:
            return Reason.NO_ROOM
        if not node.kept:
            return Reason.UNKEPT
        if below.tier is Tier.HOST:
            return None
        if not self._disk_writes_left():
            return Reason.BUSY
        return None if must or node.hits or node.seen else Reason.UNEARNED

    def _disk_writes_left(self) -> int:
        return max(self._tiers.max_disk_writes - self._transit.arriving(Tier.DISK), 0)

    def _room(
        self, shelf: Shelf, wanted: int, node: Node, must: bool, owner: str
    ) -> tuple[BlockIds, bool]:
        """Up to `wanted` slots of `shelf` for `node`, and whether more will come without asking."""
        if shelf.tier is Tier.DISK:
            wanted = min(wanted, self._disk_writes_left())
        wanted = self._within_ceiling(shelf, wanted, node, must)
        skipped: list[Node] = []
        while (short := wanted - shelf.allocator.num_free) > 0:
            if self._forget_doubles(shelf, short):
                continue
            chosen = shelf.leaves.spare(node.owner, short, wanted)
            if short <= self._transit.leaving(shelf.tier) or chosen is None:
                break
            victim, count = chosen
            if not must and not shelf.leaves.admits(node, victim):
                break
            if not self._push_down(shelf.tier, victim, count, owner):
                shelf.leaves.discard(victim)
                skipped.append(victim)
        self._offer_again(skipped)
        slots = shelf.allocator.allocate(min(wanted, shelf.allocator.num_free))
        return slots, self._transit.leaving(shelf.tier) > 0

    def _within_ceiling(self, shelf: Shelf, wanted: int, node: Node, must: bool) -> int:
        """How many of `wanted` slots `node`'s owner may take, after giving up some of its own."""
        standing = self._standings[shelf.tier]
        while over := standing.excess(node.owner, wanted):
            victim = shelf.leaves.own(node.owner)
            if victim is None or not (must or self._holds.policy.admits(node, victim)):
                break
            if not self._push_down(shelf.tier, victim, over, node.owner):
                break
        return max(wanted - over, 0)

    def _forget_doubles(self, shelf: Shelf, wanted: int) -> bool:
        found = shelf.doubles(wanted)
        if found is None:
            return False
        self._forget(shelf.tier, *found, Reason.DOUBLE)
        return True

    def _forget_copied(self, tier: Tier, node: Node, wanted: int, owner: str) -> bool:
        """Forget up to `wanted` of the node's last blocks in `tier` that lie in a slower one."""
        return self._forget_last(tier, node, trailing(_may_go(tier, node, wanted)), owner)

    def _forget_last(self, tier: Tier, node: Node, length: int, owner: str) -> bool:
        if length:
            end = node.edge.run_in(tier)[1]
            self._forget(tier, node, slice(end - length, end), Reason.COPIED, owner)
        return length > 0

    def _lose(self, tier: Tier, node: Node, wanted: int, owner: str, reason: Reason) -> None:
        """Drop up to `wanted` of the node's last blocks in `tier`, and all behind them."""
        start, end = node.edge.run_in(tier)
        count = min(wanted, end - start)
        self._count(tier, reason, node, count, owner)
        for child in list(node.children) if len(node.children) else ():
            self.count_gone(child, Reason.BEHIND, owner)
            self.free_nodes(self._holds.detach(child)[1])
        behind = len(node.edge) - end
        if behind:
            self._count_from(node, end, Reason.BEHIND, owner)
        self.free(node, end - count)
        self._holds.trim(node, behind + count)

    def _count_from(self, node: Node, start: int, reason: Reason, owner: str) -> None:
        """Count the blocks from place `start` on as gone, each from its fastest tier."""
        for tier in (Tier.DEVICE, *self.shelves):
            first, last = node.edge.run_in(tier)
            if last > max(first, start):
                self._count(tier, reason, node, last - max(first, start), owner)

    def _forget(
        self, tier: Tier, node: Node, places: slice | Places, reason: Reason, owner: str = ""
    ) -> None:
        """Give up one tier's copies of blocks that have others."""
        slots = node.edge.slots(tier)[places]
        self._count(tier, reason, node, len(slots), owner)
        if tier is Tier.DEVICE:
            self._holds.evictable_blocks -= len(slots)
            self._books.gave_back(node.owner, len(slots))
            self._device.free(slots)
        else:
            self._free_slots(tier, slots, node.owner)
        node.edge.change(places, Event.FORGET, tier)
        self._holds.changed(node)

    def _free_slots(self, tier: Tier, slots: BlockIds, owner: str) -> None:
        self.shelves[tier].allocator.free(slots)
        self._standings[tier].charge(owner, -len(slots))
        if tier is Tier.DISK:
            self._transit.erase(slots)

    def _count(self, tier: Tier, reason: Reason, node: Node, count: int, owner: str) -> None:
        """`owner` "" is nobody: the block's own owner counts on both sides."""
        eviction = Eviction(tier, reason, node.owner, owner)
        self.traffic.evict(eviction, count)
        self.ledger.note(eviction, count)
        if tier is Tier.DEVICE:
            self._books.evicted(for_owner=owner or node.owner, of_owner=node.owner, blocks=count)

    def _land(self, flight: Flight, node: Node, start: int, end: int) -> None:
        """What has arrived lies in the target as well; the other slots are free again."""
        if not flight.missed:
            node.edge.change(slice(start, end), Event.LAND, flight.target)
            self.traffic.written[flight.target] += end - start
            return
        arrived = np.ones(end - start, dtype=np.bool_)
        arrived[
            [
                at - node.start - start
                for at in flight.missed
                if node.start + start <= at < node.start + end
            ]
        ] = False
        landed, failed = start + np.flatnonzero(arrived), start + np.flatnonzero(~arrived)
        node.edge.change(landed, Event.LAND, flight.target)
        self.traffic.written[flight.target] += len(landed)
        if len(failed):
            node.edge.change(failed, Event.FAIL, flight.target)
            slots = node.edge.slots(flight.target)[failed]
            self._free_slots(flight.target, slots, node.owner)
            self.traffic.failed[flight.target] += len(failed)
            node.kept = False

    def _vacate(self, flight: Flight, node: Node) -> bool:
        """Forget the blocks that were to go, unless they are used or being copied again."""
        if not flight.makes_room or not node.attached or node.is_held or node.flights:
            return False
        if not node.is_tail(flight.source):
            return False
        start, end = node.edge.run_in(flight.source)
        wanted = end - max(flight.start - node.start, start)
        return wanted > 0 and self._forget_copied(flight.source, node, wanted, flight.for_owner)

    def _note_doubles(self, node: Node) -> None:
        for shelf in self.shelves.values():
            shelf.note_doubles(node)

    def _stands_still(self, node: Node) -> None:
        self._holds.changed(node)
        if not node.attached:
            self.free_nodes([] if node.is_held else [node])

    def _shelf_below(self, tier: Tier) -> Shelf | None:
        if tier is Tier.DEVICE and Tier.HOST in self.shelves:
            return self.shelves[Tier.HOST]
        return None if tier is Tier.DISK else self.shelves.get(Tier.DISK)

    def _offer_again(self, skipped: list[Node]) -> None:
        for node in skipped:
            self._holds.offer(node)


def _may_go(tier: Tier, node: Node, wanted: int) -> bytes:
    """Flags of the node's last `wanted` blocks in `tier`: which lie where they may stay alone.

    A block that lies in the host has none before it that lies on disk alone. So a device block in
    front of such a one may not go before it has a copy in the host.
    """
    start, end = node.edge.run_in(tier)
    states = node.edge.states_of(max(start, end - wanted), end)
    if tier is Tier.DISK:
        return bytes(len(states))  # nothing is slower
    if tier is Tier.HOST:
        return flags(states, DISK)
    in_host = flags(states, HOST)
    host_behind = node.edge.num_upper > end or node.upper_children > 0
    bound = len(states) if host_behind else in_host.rfind(1) + 1  # the last one in the host
    return in_host[:bound] + flags(states[bound:], DISK)
