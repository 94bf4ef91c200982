"""Copies of state checkpoints between tiers: down before eviction, and up for leases.

The recurrent states that are evicted next are first copied to the tier below (`copy_ahead`). A new
request waits for these copies if states would otherwise be lost (`make_room`). A running sequence
does not wait. Only states that were found again or are retained go to disk. Few states are written
at once, so a slow disk delays no request.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from prefix_cache.errors import InvariantBroken
from prefix_cache.eviction.checkpoint_worth import checkpoint_of
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.tiers.checkpoints import SEQUENCE_SLOTS, Checkpoints
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.tier_states import TierStates
from prefix_cache.tree.node import Node, Transfer
from storage.move import DEVICE_TIER, DISK_TIER, Tier

AHEAD = 2 * SEQUENCE_SLOTS  # slots of a tier that stay free, or can be freed without a loss
DISK_WRITES = 2  # maximum number of states being written to disk (of each owner, if partitioned)


class StateCopies:
    """The copies of recurrent states under way. Used by one thread only."""

    def __init__(
        self, checkpoints: Checkpoints, ref_counts: RefCounts, in_flight: InFlight
    ) -> None:
        self._checkpoints = checkpoints
        self._tiers = checkpoints.tiers
        self._device = checkpoints.device
        self._ref_counts = ref_counts
        self._in_flight = in_flight
        self._below = dict(pairwise(self._tiers.values()))
        # States being copied down: by source tier, by target tier, and by owner.
        self._from: Counter[Tier] = Counter()
        self._to: Counter[Tier] = Counter()
        self._of: Counter[str] = Counter()

    def is_copied_down(self, owner: str) -> bool:
        """Return whether state checkpoints of `owner` are being copied down."""
        return self._of[owner] > 0

    def make_room(self, count: int, owner: str, beside: Node) -> bool:
        """Return whether `count` slots can be freed without losing a state worth a copy.

        `beside` keeps its copies. Returns False if copies under way must free slots first, or if
        sequences hold too many slots.
        """
        if not self._checkpoints.can_take(count, beside):
            return False
        self._checkpoints.withdraw(beside)
        is_saved = self._offload(self._device, count, owner)
        self._checkpoints.offer(beside)
        return is_saved or not self._from[DEVICE_TIER]

    def copy_ahead(self) -> None:
        """Start to copy down the recurrent states that are evicted next.

        Where tiers are partitioned, only states of owners whose partition is full are copied. So
        the states that an owner keeps do not depend on other owners.
        """
        grown, self._checkpoints.grown = self._checkpoints.grown, set()
        for at in self._below:
            if not at.usage.parts:
                self._offload(at, AHEAD)
            for owner in sorted(grown):
                node = at.own_victim(owner) if at.usage.excess(owner, 1) else None
                if node is not None:
                    self._copy_down(node, at)

    def save(self, node: Node) -> bool:
        """Start to copy the node's recurrent state to disk before a stop, if possible now."""
        disk, checkpoint = self._tiers.get(DISK_TIER), node.checkpoint
        if disk is None or checkpoint is None or DISK_TIER in checkpoint.coming:
            return False
        source = next((tier for tier in self._tiers if tier in checkpoint.copies), DISK_TIER)
        if DISK_TIER in checkpoint.copies or source is DISK_TIER or not self._room(disk, node):
            return False
        self._begin(node, self._tiers[source], disk)
        return True

    def load(self, node: Node, owner: str) -> Transfer | None:
        """Start to copy the node's recurrent state from a lower tier to a device slot.

        Returns None if no slot is free. The device must have no copy of the state, and no copy may
        be under way.
        """
        source = checkpoint_of(node).lower_tier
        if source is None:
            raise InvariantBroken("a state is to be loaded that no tier has")
        self._checkpoints.may_put(node.owner)  # this evicts checkpoints over the owner's share
        if not self._checkpoints.free(1, owner):
            return None
        return self._begin(node, self._tiers[source], self._device)

    def complete(self, transfer: Transfer) -> bool:
        """Apply the end of a recurrent state's copy. Return whether the state has arrived."""
        self._in_flight.close(transfer)
        [node], [move] = transfer.nodes, transfer.moves
        checkpoint, target = checkpoint_of(node), self._tiers[transfer.target]
        is_down, counts = target is not self._device, self._checkpoints.counts
        self._count(transfer, node, -is_down)
        node.transfers.remove(transfer)
        del checkpoint.coming[transfer.target]
        if transfer.missed:
            counts.failed += 1
            target.fail(node, move.target)
            self._checkpoints.erase(target, move.target)
            checkpoint.kept = not is_down
            copy = checkpoint.copies.get(transfer.source)
            if transfer.lost and copy is not None and copy.slot == move.source:
                self._checkpoints.forget(self._tiers[transfer.source], node)
            self._checkpoints.clear(node)
        else:
            counts.copied_down += is_down
            self._checkpoints.grown.add(node.owner)
            counts.loaded += not is_down
            target.land(node, move.target)
        self._checkpoints.offer(node)
        return not transfer.missed

    def _offload(self, at: TierStates, wanted: int, owner: str = "") -> bool:
        """Copy down victims until `wanted` slots can be freed without a loss.

        Returns False if copies begun by this call must end first.
        """
        if at not in self._below:
            return True
        ready, begun, passed = at.allocator.num_free, 0, list[Node]()
        while ready + begun < wanted and (node := at.victim(owner)) is not None:
            if self._copy_down(node, at):
                begun += 1
                continue
            ready += 1  # the tier below has the recurrent state or cannot take it
            at.candidates.discard(node)
            passed.append(node)
        for node in passed:
            at.offer(node)
        return not begun

    def _copy_down(self, node: Node, at: TierStates) -> bool:
        """Start to copy the node's recurrent state from `at` to the tier below, if possible now."""
        below, checkpoint = self._below[at], checkpoint_of(node)
        order = list(self._tiers)
        is_there = any(one in checkpoint.copies for one in order[order.index(at.tier) + 1 :])
        if is_there or not checkpoint.kept:
            return False
        if below.tier is DISK_TIER and not self._earns_disk(node):
            return False
        if not self._room(below, node):
            return False
        self._begin(node, at, below)
        return True

    def _earns_disk(self, node: Node) -> bool:
        return bool(node.hits or node.seen or self._ref_counts.retention.keeps(node))

    def _room(self, at: TierStates, node: Node) -> bool:
        under_way = self._of[node.owner] if at.usage.parts else self._to[DISK_TIER]
        if at.tier is DISK_TIER and under_way >= DISK_WRITES:
            return False
        while at.usage.excess(node.owner, 1) and not at.is_exempt(node.owner):
            own = at.own_victim(node.owner)
            if own is None or not at.candidates.admits(node, own):
                return False
            self._checkpoints.evict(at, own)
        if not at.allocator.num_free and not at.usage.parts:
            victim = at.victim(node.owner, spares=True)
            if victim is not None and at.candidates.admits(node, victim):
                self._checkpoints.evict(at, victim)
        return at.allocator.num_free > 0

    def _begin(self, node: Node, source: TierStates, target: TierStates) -> Transfer:
        ends = source.tier, target.tier
        slots = checkpoint_of(node).copies[source.tier].slot, target.begin(node)
        transfer = self._in_flight.begin_state(node, ends, slots)
        checkpoint_of(node).coming[target.tier] = transfer
        self._count(transfer, node, int(target is not self._device))
        self._checkpoints.offer(node)
        self._ref_counts.withdraw(node)
        return transfer

    def _count(self, transfer: Transfer, node: Node, one: int) -> None:
        self._from[transfer.source] += one
        self._to[transfer.target] += one
        self._of[node.owner] += one
