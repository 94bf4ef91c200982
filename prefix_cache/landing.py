"""What becomes of blocks whose copies to a slower tier have ended.

    arrived       they lie in the slower tier as well
    failed        the slot there is free again; the node is not copied down again before it is used
    to make room  their faster copies are forgotten, unless they were used meanwhile
    lost          the copy that was read is no good: reported to the caller

Knows: flights that have ended. Does not know: why they were begun (`descent`), or flights up
(`ascent`).
"""

from __future__ import annotations

import numpy as np

from prefix_cache.holds import Holds
from prefix_cache.losses import Losses
from prefix_cache.node import Flight, Node
from prefix_cache.residency import FAIL, LAND
from prefix_cache.shelf import Pools
from prefix_cache.transit import Transit
from storage.move import DEVICE_TIER


class Landing:
    """Settles flights. One owner thread."""

    def __init__(self, holds: Holds, pools: Pools, losses: Losses, transit: Transit) -> None:
        self._holds = holds
        self._shelves = list(pools.shelves.values())
        self._standings = pools.standings
        self._losses = losses
        self._transit = transit

    def settle(self, flight: Flight) -> list[tuple[Node, int]]:
        """Apply that all copies of a flight to a slower tier have ended, arrived or not.

        Returns the blocks whose source was found to be no good, as nodes and positions.
        """
        self._transit.close(flight)
        if flight.makes_room:
            owner, blocks = flight.nodes[0].owner, flight.end - flight.start
            self._standings[flight.source].leaving(owner, -blocks)
        for node, start, end in reversed(flight.parts()):  # from the tail, as blocks go
            node.flights.remove(flight)
            self._land(flight, node, start, end)
            self._note_doubles(node)
            if not self._vacate(flight, node, start, end):
                self._stands_still(node)
        if not flight.lost:
            return []
        return [(flight.node_at(position), position) for position in sorted(flight.lost)]

    def settled(self, node: Node) -> None:
        """Update the node after a copy of some of its blocks has ended, up or down."""
        self._note_doubles(node)
        self._stands_still(node)

    def _note_doubles(self, node: Node) -> None:
        for shelf in self._shelves:
            shelf.note_doubles(node)

    def _stands_still(self, node: Node) -> None:
        self._holds.changed(node)
        if not node.attached and not node.is_held:
            self._losses.free_nodes([node])

    def _land(self, flight: Flight, node: Node, start: int, end: int) -> None:
        """Note which blocks arrived in the target; free the slots of those that did not."""
        traffic = self._losses.traffic
        if not flight.missed:
            node.edge.change(slice(start, end), LAND, flight.target)
            traffic.written[flight.target] += end - start
            return
        missed = {position - node.start for position in flight.missed}
        landed = np.array([at for at in range(start, end) if at not in missed], dtype=np.intp)
        failed = np.array([at for at in range(start, end) if at in missed], dtype=np.intp)
        node.edge.change(landed, LAND, flight.target)
        traffic.written[flight.target] += len(landed)
        if len(failed):
            node.edge.change(failed, FAIL, flight.target)
            slots = node.edge.slots(flight.target)[failed]
            self._losses.free_slots(flight.target, slots, node.owner)
            traffic.failed[flight.target] += len(failed)
            node.kept = False

    def _vacate(self, flight: Flight, node: Node, start: int, end: int) -> bool:
        """Forget the blocks [start, end) that were to go, unless they are used or copied again.

        False: nothing was forgotten.
        """
        source, owner = flight.source, flight.for_owner
        is_used = node.leases or node.held_children or node.flights
        may_go = flight.makes_room and node.attached and not is_used
        if not may_go or (node.device_children if source is DEVICE_TIER else node.upper_children):
            return False
        first, last = node.edge.run_in(source)
        start = max(start, first)
        if last == end and not flight.missed:
            self._losses.forget_copies(source, node, start, end, owner)
            return True
        return start < last and self._losses.forget_copied(source, node, last - start, owner)
