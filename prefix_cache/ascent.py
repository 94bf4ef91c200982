"""How blocks come back: loads of the part of a prefix that lies lower than the device.

A load is a run of blocks behind a part that is on the device or on its way there. Its copies
arrive in any order; when the last has, and the load before it has closed, the leading blocks that
arrived are on the device and the slots of the others are free again. So the device never has a
block without all those before it.

    load 1 |=====x=====|          x has not arrived: what is before it lands, the rest does not,
    load 2             |=======|  and nor does what was to come behind it

A lease waits for every load on its way. Where a block it counts on does not arrive, the lease
has failed: it is to be released, and its sequence starts over with what is there. It does not wait
for a load that is promised: whoever reads the blocks waits for what is missing himself, and they
do arrive. A load is promised when all its copies are, and the load before it is closed or promised.

Knows: loads and who waits for them. Does not know: how many blocks are worth loading
(`recompute`), or where the room comes from (`descent`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prefix_cache.edge import Places
from prefix_cache.holds import Holds
from prefix_cache.lease import Lease
from prefix_cache.node import Node, Position, Shipment
from prefix_cache.residency import DEVICE, FAIL, HOST, LAND, MOVING, WAY, WITHOUT
from prefix_cache.supply import Supply
from prefix_cache.transit import Transit
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER

COMING = WAY * DEVICE


@dataclass(slots=True, eq=False)
class Load:
    """A run of blocks on its way to the device, in order of position."""

    shipments: list[Shipment] = field(default_factory=list)
    open: int = 0  # shipments that have not ended
    unsure: set[Shipment] = field(default_factory=set)  # those that are not promised
    is_promised: bool = False
    leases: list[Lease] = field(default_factory=list)
    after: Load | None = None  # the load whose blocks come right before, until it has closed
    followers: list[Load] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A prefix in the tree, in blocks from position 0 and in this order."""

    device: int  # on the device
    coming: int  # on its way there
    host: int  # no higher than in the host
    disk: int  # on disk alone

    @property
    def total(self) -> int:
        """Blocks in the tree."""
        return self.device + self.coming + self.host + self.disk


def whereabouts(at: Position) -> Whereabouts:
    """Where the blocks up to `at` lie."""
    if at.inside <= at.node.edge.num_device:
        return Whereabouts(at.num_blocks, 0, 0, 0)
    states = np.frombuffer(_states_to(at), np.uint8)
    device, coming = states & DEVICE != 0, states & COMING != 0
    host = (states & HOST != 0) & ~device & ~coming
    on_device, on_way, in_host = (int(np.count_nonzero(part)) for part in (device, coming, host))
    return Whereabouts(on_device, on_way, in_host, len(states) - on_device - on_way - in_host)


def reachable(at: Position, load_blocks: int | None) -> int:
    """How many blocks up to `at` a lease may count on, with at most `load_blocks` loads.

    None: with any number of loads.
    """
    if at.inside <= at.node.edge.num_device:
        return at.num_blocks
    in_order = _states_to(at)
    if not in_order.translate(None, WITHOUT[MOVING]):  # as a rule: what is there comes first
        most = at.num_blocks if load_blocks is None else load_blocks + _there(in_order)
        return min(most, at.num_blocks)
    states = np.frombuffer(in_order, np.uint8)
    there = states & (DEVICE | COMING) != 0
    loadable = ~there & (states & MOVING == 0)
    if load_blocks is not None:
        loadable &= np.cumsum(loadable) <= load_blocks
    # Blocks on their way behind a block that is not will not land: it should have come first.
    gap = there & ~np.logical_and.accumulate(there)
    wrong = np.flatnonzero(~(there | loadable) | gap)
    return int(wrong[0]) if len(wrong) else len(states)


def blocks_before_coming(at: Position) -> int:
    """How many blocks up to `at` come before the first that is on its way to the device."""
    if at.inside <= at.node.edge.num_device:
        return at.num_blocks
    coming = np.flatnonzero(np.frombuffer(_states_to(at), np.uint8) & COMING)
    return int(coming[0]) if len(coming) else at.num_blocks


def to_load(at: Position) -> int:
    """How many blocks up to `at` are neither on the device nor coming."""
    if at.inside <= at.node.edge.num_device:
        return 0
    return at.num_blocks - _there(_states_to(at))


class Ascent:
    """The loads under way. One owner thread."""

    def __init__(self, holds: Holds, supply: Supply, transit: Transit) -> None:
        self._holds = holds
        self._supply = supply
        self._traffic = supply.losses.traffic
        self._landing = supply.landing
        self._transit = transit
        self._load_of: dict[Shipment, Load] = {}

    def begin(self, node: Node, owner: str, lease: Lease | None = None) -> None:
        """Load what is missing on the way to `node`; the room for it is free.

        `lease` waits for it, and for what is on its way there already.
        """
        load, before = Load(), dict[Load, None]()
        for part, lower in _lower_parts(node):
            before.update(
                (self._load_of[one], None) for one in part.shipments if one in self._load_of
            )
            if len(lower):
                load.shipments += self._fetch(part, lower, owner)
        if load.shipments:
            load.open, load.unsure = len(load.shipments), set(load.shipments)
            load.after = next(reversed(before), None)
            if load.after is not None:
                load.after.followers.append(load)
            self._load_of.update(dict.fromkeys(load.shipments, load))
            before[load] = None
        if lease is not None:
            for awaited in before:
                awaited.leases.append(lease)
                lease.loads += not awaited.is_promised

    def promise(self, shipment: Shipment) -> None:
        """Note that whoever reads the blocks of a shipment to the device waits for them himself."""
        load = self._load_of[shipment]
        load.unsure.discard(shipment)
        self._note_promised(load)

    def settle(self, shipment: Shipment) -> list[tuple[Node, int]]:
        """Apply that all copies of a shipment to the device have ended.

        Returns the blocks that were lost, as nodes and positions, of the loads that are closed by
        this. They are not on the device and no longer on their way there.
        """
        load = self._load_of[shipment]
        load.open -= 1
        return self._close(load)

    def _note_promised(self, load: Load) -> None:
        """Let leases wait no more for a load that is promised now, nor for those behind it."""
        if load.unsure or not load.open or load.is_promised:
            return
        if load.after is not None and not load.after.is_promised:
            return
        load.is_promised = True
        for shipment in load.shipments:
            shipment.is_promised = True
        for lease in load.leases:
            lease.loads -= 1
        for follower in load.followers:
            self._note_promised(follower)

    def _fetch(self, node: Node, lower: Places, owner: str) -> list[Shipment]:
        """Begin to copy the blocks in these places, each from its fastest tier."""
        in_host = node.edge.states[lower] & HOST != 0
        num_host = int(np.count_nonzero(in_host))  # those come first
        shipments = []
        for source, places in ((HOST_TIER, lower[:num_host]), (DISK_TIER, lower[num_host:])):
            if len(places):
                slots = self._supply.take(len(places), node.owner)
                ends = (source, DEVICE_TIER)
                begun = self._transit.begin(node, int(places[0]), ends, slots, for_owner=owner)
                shipments.append(begun)
        self._holds.changed(node)
        return shipments

    def _close(self, load: Load) -> list[tuple[Node, int]]:
        """Settle a load all of whose copies have ended, and those that waited for it."""
        if load.open or load.after is not None:
            return []
        missed = min((min(one.missed) for one in load.shipments if one.missed), default=None)
        failed_from = None
        for shipment in load.shipments:
            del self._load_of[shipment]
            self._transit.close(shipment)
            for node, start, end in shipment.parts():
                landed = self._land(shipment, node, start, end, missed)
                if start + landed < end and failed_from is None:
                    failed_from = node.start + start + landed
        for lease in load.leases:
            lease.loads -= not load.is_promised
            lease.failed |= failed_from is not None and failed_from < lease.num_shared
        lost = [
            (one.node_at(position), position)
            for one in load.shipments
            for position in sorted(one.lost)
        ]
        for follower in load.followers:
            follower.after = None
            lost += self._close(follower)
            self._note_promised(follower)
        return lost

    def _land(
        self, shipment: Shipment, node: Node, start: int, end: int, missed: int | None
    ) -> int:
        """Put those blocks on the device before which none is missing; return how many."""
        edge, above = node.edge, node.parent
        whole = above is None or above.edge.is_on_device
        last = end if missed is None else min(max(missed - node.start, start), end)
        landed = last - start if edge.num_device == start and (start or whole) else 0
        node.shipments.remove(shipment)
        edge.change(slice(start, start + landed), LAND, DEVICE_TIER)
        edge.change(slice(start + landed, end), FAIL, DEVICE_TIER)
        self._supply.give_back(edge.slots(DEVICE_TIER)[start + landed : end].copy(), node.owner)
        self._traffic.loaded[shipment.source] += landed
        self._traffic.failed[DEVICE_TIER] += end - start - landed
        if node.attached and not node.is_held:
            self._holds.evictable_blocks += landed
        self._landing.settled(node)
        return landed


def _there(states: bytes) -> int:
    """How many blocks are on the device or coming."""
    return len(states.translate(None, WITHOUT[DEVICE | COMING]))


def _states_to(at: Position) -> bytes:
    """The states of the blocks up to `at`, in order."""
    parts, node = [at.node.edge.states_of(0, at.inside)], at.node.parent
    while node is not None:
        parts.append(node.edge.states_of(0, node.edge.num_blocks))
        node = node.parent
    return b"".join(reversed(parts))


def _lower_parts(node: Node) -> list[tuple[Node, Places]]:
    """The nodes on the way to `node` that are not all on the device, and the places of their
    blocks that are not even coming; those nearest to the root first.
    """
    parts = []
    current: Node | None = node
    while current is not None and not current.edge.is_on_device:
        parts.append((current, np.flatnonzero(current.edge.states & (DEVICE | COMING) == 0)))
        current = current.parent
    return parts[::-1]
