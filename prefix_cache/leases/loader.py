"""The loader of a prefix's blocks that lie in lower tiers.

A load is a run of blocks that follow blocks on the device or in an earlier load. The load's copies
end in any order. A load is closed when its last copy has ended and the load before it is closed.
Then the leading blocks that arrived are on the device, and the other slots are free again. So the
device never has a block without all blocks before it.

    load 1 |=====x=====|          the copy of x failed: blocks before x are loaded; later blocks
    load 2             |=======|  are not loaded, in this load and in the next

A lease waits for every load of its blocks. If one of these blocks does not arrive, the lease has
failed. The lease must be released, and its sequence starts over with the blocks that have arrived.

A load can be released early if its copies are sure to arrive and the load before it is closed or
released early. Then its leases wait no longer. Steps wait on the device for missing layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.leases.lease import Lease
from prefix_cache.tiers.capacity import Capacity
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tree.edge import Places
from prefix_cache.tree.match import COMING
from prefix_cache.tree.node import Node, Transfer
from prefix_cache.tree.residency import DEVICE, FAIL, HOST, LAND
from storage.move import DEVICE_TIER, DISK_TIER, HOST_TIER


@dataclass(slots=True, eq=False)
class PlannedLoad:
    """A run of blocks being loaded to the device, in order of position."""

    transfers: list[Transfer] = field(default_factory=list)
    open: int = 0
    unsure: set[Transfer] = field(default_factory=set)
    is_released: bool = False
    leases: list[Lease] = field(default_factory=list)
    after: PlannedLoad | None = None  # the open load of the blocks just before these
    followers: list[PlannedLoad] = field(default_factory=list)


def loads_by_owner(node: Node) -> dict[str, int]:
    """Count, by owner, the blocks up to `node`'s end that still have to be loaded."""
    loads: dict[str, int] = {}
    for part, lower in _lower_parts(node):
        loads[part.owner] = loads.get(part.owner, 0) + len(lower)
    return loads


class Loader:
    """The loads under way. Used by one thread only."""

    def __init__(self, ref_counts: RefCounts, capacity: Capacity, in_flight: InFlight) -> None:
        self._ref_counts = ref_counts
        self._capacity = capacity
        self._traffic = capacity.removals.eviction_log
        self._in_flight = in_flight
        self._load_of: dict[Transfer, PlannedLoad] = {}

    def begin(self, node: Node, owner: str, lease: Lease | None = None) -> None:
        """Load the missing blocks up to `node`, for which device slots are free.

        `lease` waits for this load and for other loads of its blocks.
        """
        load, before = PlannedLoad(), dict[PlannedLoad, None]()
        for part, lower in _lower_parts(node):
            before.update(
                (self._load_of[one], None) for one in part.transfers if one in self._load_of
            )
            if len(lower):
                load.transfers += self._fetch(part, lower, owner)
        if load.transfers:
            load.open, load.unsure = len(load.transfers), set(load.transfers)
            load.after = next(reversed(before), None)
            if load.after is not None:
                load.after.followers.append(load)
            self._load_of.update(dict.fromkeys(load.transfers, load))
            before[load] = None
        if lease is not None:
            for awaited in before:
                awaited.leases.append(lease)
                lease.loads += not awaited.is_released

    def release_early(self, transfer: Transfer) -> None:
        """Record that steps which read a transfer's blocks wait on the device for its copies."""
        load = self._load_of[transfer]
        load.unsure.discard(transfer)
        self._note_released(load)

    def complete(self, transfer: Transfer) -> list[tuple[Node, int]]:
        """Apply a transfer to the device, all of whose copies have ended.

        Returns the lost blocks of the loads closed by this call, as nodes and positions.
        """
        load = self._load_of[transfer]
        load.open -= 1
        return self._close(load)

    def _note_released(self, load: PlannedLoad) -> None:
        if load.unsure or not load.open or load.is_released:
            return
        if load.after is not None and not load.after.is_released:
            return
        load.is_released = True
        for transfer in load.transfers:
            transfer.is_released = True
        for lease in load.leases:
            lease.loads -= 1
        for follower in load.followers:
            self._note_released(follower)

    def _fetch(self, node: Node, lower: Places, owner: str) -> list[Transfer]:
        in_host = node.edge.states[lower] & HOST != 0
        num_host = int(np.count_nonzero(in_host))
        transfers = []
        for source, places in ((HOST_TIER, lower[:num_host]), (DISK_TIER, lower[num_host:])):
            if len(places):
                slots = self._capacity.take(len(places), node.owner)
                ends = (source, DEVICE_TIER)
                begun = self._in_flight.begin(node, int(places[0]), ends, slots, for_owner=owner)
                transfers.append(begun)
        self._ref_counts.changed(node)
        return transfers

    def _close(self, load: PlannedLoad) -> list[tuple[Node, int]]:
        """Close a load whose copies have all ended, and the loads after it where possible."""
        if load.open or load.after is not None:
            return []
        missed = min((min(one.missed) for one in load.transfers if one.missed), default=None)
        failed_from = None
        for transfer in load.transfers:
            del self._load_of[transfer]
            self._in_flight.close(transfer)
            for node, start, end in transfer.parts():
                landed = self._land(transfer, node, start, end, missed)
                if start + landed < end and failed_from is None:
                    failed_from = node.start + start + landed
        for lease in load.leases:
            lease.loads -= not load.is_released
            lease.failed |= failed_from is not None and failed_from < lease.num_shared
        lost = [
            (one.node_at(position), position)
            for one in load.transfers
            for position in sorted(one.lost)
        ]
        for follower in load.followers:
            follower.after = None
            lost += self._close(follower)
            self._note_released(follower)
        return lost

    def _land(
        self, transfer: Transfer, node: Node, start: int, end: int, missed: int | None
    ) -> int:
        """Record arrived blocks before the first missing block, and return their number."""
        edge, above = node.edge, node.parent
        whole = above is None or above.edge.is_on_device
        last = end if missed is None else min(max(missed - node.start, start), end)
        landed = last - start if edge.num_device == start and (start or whole) else 0
        node.transfers.remove(transfer)
        device, upper = edge.num_device, edge.num_upper
        edge.change(slice(start, start + landed), LAND, DEVICE_TIER)
        edge.change(slice(start + landed, end), FAIL, DEVICE_TIER)
        if node.attached and self._ref_counts.tree.changes is not None:
            self._ref_counts.tree.changes.moved(edge, device, upper)
        self._capacity.give_back(edge.slots(DEVICE_TIER)[start + landed : end].copy(), node.owner)
        self._traffic.loaded[transfer.source] += landed
        self._traffic.failed[DEVICE_TIER] += end - start - landed
        if node.attached and not node.is_held:
            self._ref_counts.evictable_blocks += landed
        self._capacity.landed(node)
        return landed


def _lower_parts(node: Node) -> list[tuple[Node, Places]]:
    """Return nodes up to `node` with their blocks that are not on the device and not loading."""
    lower = list(takewhile(lambda part: not part.edge.is_on_device, node.way_up()))
    return [
        (part, np.flatnonzero(part.edge.states & (DEVICE | COMING) == 0)) for part in lower[::-1]
    ]
