"""What becomes of blocks whose copies to a slower tier have ended.

    arrived       they lie in the slower tier as well
    failed        the slot there is free again; the node is not copied down again before it is used
    to make room  their faster copies are forgotten, unless they were used meanwhile
    lost          the copy that was read is no good: reported to the caller

Knows: shipments that have ended. Does not know: why they were begun (`descent`), or shipments up
(`ascent`).
"""

from __future__ import annotations

import numpy as np

from prefix_cache.holds import Holds
from prefix_cache.losses import Losses
from prefix_cache.node import Node, Shipment
from prefix_cache.residency import FAIL, LAND
from prefix_cache.shelf import Pools
from prefix_cache.transit import Transit
from storage.move import DEVICE_TIER


class Landing:
    """Settles shipments. One owner thread."""

    def __init__(self, holds: Holds, pools: Pools, losses: Losses, transit: Transit) -> None:
        self._holds = holds
        self._shelves = list(pools.shelves.values())
        self._standings = pools.standings
        self._losses = losses
        self._transit = transit

    def settle(self, shipment: Shipment) -> list[tuple[Node, int]]:
        """Apply that all copies of a shipment to a slower tier have ended, arrived or not.

        Returns the blocks whose source was found to be no good, as nodes and positions.
        """
        self._transit.close(shipment)
        if shipment.makes_room:
            owner, blocks = shipment.nodes[0].owner, shipment.end - shipment.start
            self._standings[shipment.source].leaving(owner, -blocks)
        for node, start, end in reversed(shipment.parts()):  # from the tail, as blocks go
            node.shipments.remove(shipment)
            self._land(shipment, node, start, end)
            self._note_doubles(node)
            if not self._vacate(shipment, node, start, end):
                self._stands_still(node)
        if not shipment.lost:
            return []
        return [(shipment.node_at(position), position) for position in sorted(shipment.lost)]

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

    def _land(self, shipment: Shipment, node: Node, start: int, end: int) -> None:
        """Note which blocks arrived in the target; free the slots of those that did not."""
        traffic = self._losses.traffic
        if not shipment.missed:
            node.edge.change(slice(start, end), LAND, shipment.target)
            traffic.written[shipment.target] += end - start
            return
        missed = {position - node.start for position in shipment.missed}
        landed = np.array([at for at in range(start, end) if at not in missed], dtype=np.intp)
        failed = np.array([at for at in range(start, end) if at in missed], dtype=np.intp)
        node.edge.change(landed, LAND, shipment.target)
        traffic.written[shipment.target] += len(landed)
        if len(failed):
            node.edge.change(failed, FAIL, shipment.target)
            slots = node.edge.slots(shipment.target)[failed]
            self._losses.free_slots(shipment.target, slots, node.owner)
            traffic.failed[shipment.target] += len(failed)
            node.kept = False

    def _vacate(self, shipment: Shipment, node: Node, start: int, end: int) -> bool:
        """Forget the blocks [start, end) that were to go, unless they are used or copied again.

        False: nothing was forgotten.
        """
        source, owner = shipment.source, shipment.for_owner
        is_used = node.leases or node.held_children or node.shipments
        may_go = shipment.makes_room and node.attached and not is_used
        if not may_go or (node.device_children if source is DEVICE_TIER else node.upper_children):
            return False
        first, last = node.edge.run_in(source)
        start = max(start, first)
        if last == end and not shipment.missed:
            self._losses.forget_copies(source, node, start, end, owner)
            return True
        return start < last and self._losses.forget_copied(source, node, last - start, owner)
