"""State checkpoints: recurrent states that the tree keeps, and their slots in each tier.

    device slot 0   never holds a state; named by rows that need no state
    from 1 on       free, a running sequence's (`leases.lease_states`), or a node's checkpoint
    lower tiers     free, a node's checkpoint, or being filled

A checkpoint lasts while its node's last block is in some tier and some tier has its state. When a
slot is needed on the device, the checkpoint that is worth least gives up its slot. A checkpoint
that a lease may read or that is being copied keeps its slot.

Where tiers are partitioned, sequences get at most half of the device's slots. Each owner has a
partition of the other half. So the states that an owner finds do not depend on how many sequences
other owners run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prefix_cache.errors import InvariantBroken
from prefix_cache.eviction.checkpoint_worth import checkpoint_of
from prefix_cache.eviction.retention import Retention
from prefix_cache.eviction.shares import Quota
from prefix_cache.tiers.in_flight import InFlight
from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tiers.tier_states import TierStates
from prefix_cache.tree.match import last_checkpoint
from prefix_cache.tree.node import Checkpoint, Node, Position
from storage.move import DEVICE_TIER, DISK_TIER, FIRST_SLOT

SEQUENCE_SLOTS = 2
# slots of a running sequence that also keeps the recurrent state at its answer's end
ANSWER_SLOTS = SEQUENCE_SLOTS + 1
# slots of a running sequence and of the checkpoint that it starts from
LEAST_SLOTS = SEQUENCE_SLOTS + 1


@dataclass(slots=True)
class CheckpointCounts:
    """Counts of state checkpoints since the start."""

    made: int = 0
    hits: int = 0  # number of sequences that started from a checkpoint
    cut_tokens: int = 0  # matched tokens after the checkpoint from which a sequence started
    evicted: int = 0
    refused: int = 0  # number of recurrent states that were not kept for lack of a slot
    copied_down: int = 0
    loaded: int = 0  # number of checkpoints copied back to the device
    failed: int = 0


class Checkpoints:
    """The state slots of a cache in all tiers. Used by one thread only."""

    def __init__(
        self,
        num_states: int,
        tiers: Tiers,
        retention: Retention,
        in_flight: InFlight,
        max_running: int = 0,
    ) -> None:
        """Divide `num_states` state slots, which are 0 for a model without recurrent layers.

        `max_running` is the maximum number of sequences that run at once, or 0 if unknown. Raises
        ValueError if the slots are too few for one sequence.
        """
        if 0 < num_states < FIRST_SLOT + LEAST_SLOTS:
            raise ValueError(f"{num_states} state slots are too few for one sequence")
        sizes = tiers.states(num_states)
        self.tiers = {tier: TierStates(tier, slots, retention) for tier, slots in sizes.items()}
        self.device = self.tiers[DEVICE_TIER]
        self.counts = CheckpointCounts()
        self.num_pinned = 0
        self.grown: set[str] = set()
        self._sizes = tiers
        # Slots outside all owners' partitions, where tiers are partitioned.
        half = self.device.usage.total - self.device.usage.total // 2
        self._for_sequences = max(min(SEQUENCE_SLOTS * max_running or half, half), LEAST_SLOTS)
        self._in_flight = in_flight

    @property
    def num_leased(self) -> int:
        """The number of device slots that sequences hold outside all owners' partitions."""
        device = self.device
        return device.usage.total - device.allocator.num_free - device.num_used - device.num_held

    @property
    def is_empty(self) -> bool:
        """True if no tier has a state checkpoint."""
        return not any(at.num_used for at in self.tiers.values())

    @property
    def is_partitioned(self) -> bool:
        """True if each owner has its own partition of the device's slots."""
        return bool(self.device.usage.parts)

    def can_take(self, count: int, beside: Node | None = None) -> bool:
        """Return whether `count` device slots can be freed while `beside` keeps its checkpoint."""
        free, candidates = self.device.allocator.num_free, self.device.candidates
        if self.is_partitioned and self.num_leased:
            # A sequence takes slots of other owners' partitions only if it could never run
            # otherwise.
            return free >= count and self.num_leased + count <= self._for_sequences
        if free >= count:
            return True
        return free + len(candidates) - (beside is not None and beside in candidates) >= count

    def are_leased(self) -> bool:
        """Return whether running sequences leave too few device slots for another sequence."""
        if self.is_partitioned:
            return self.num_leased + SEQUENCE_SLOTS > self._for_sequences
        return not self.can_take(SEQUENCE_SLOTS)

    def take(self, count: int, owner: str) -> list[int] | None:
        """Take `count` device slots for `owner`, after evictions if needed.

        Returns None if too few slots can be freed now. Then nothing has changed.
        """
        return self.device.take(count) if self.free(count, owner) else None

    def take_for_answer(self, owner: str) -> list[int]:
        """Take a slot for the recurrent state at an answer's end; return [] if none can be spared.

        In shared tiers, a slot can be spared while sequences have less than half of the slots, so
        that no sequence waits for this slot. In partitioned tiers, the slot must be free, and is
        charged to the owner's partition until `end_hold`.
        """
        if not self.is_partitioned:
            is_rich = 2 * self.num_leased < self.device.usage.total
            return (self.take(1, owner) or []) if is_rich else []
        if not (self.may_put(owner) and self.device.allocator.num_free):
            return []
        return [self.device.hold(owner)]

    def end_hold(self, owner: str) -> None:
        """Stop charging a taken slot of `take_for_answer` to the owner's partition."""
        self.device.end_hold(owner)

    def free(self, count: int, owner: str) -> bool:
        """Free `count` device slots for `owner`, or return False if this is impossible now."""
        if not self.can_take(count):
            return False
        while self.device.allocator.num_free < count:
            node = self.device.victim(owner)
            if node is None:
                raise InvariantBroken("state slots were promised that no checkpoint can give")
            self.evict(self.device, node)
        return True

    def take_in_exchange(self, owner: str) -> list[int] | None:
        """Take a device slot in exchange for a slot that `owner` gives to the tree.

        Returns None if no slot is free now.
        """
        if not self.is_partitioned:
            return self.take(1, owner)
        # The sequence holds no more slots than before, and the owner's partition has room
        # (`may_put`).
        return self.device.take(1) if self.device.allocator.num_free else None

    def may_put(self, owner: str) -> bool:
        """Make room for one more state checkpoint of `owner` within its share.

        Returns False if the owner's other checkpoints cannot be evicted now.
        """
        return self.device.is_exempt(owner) or self._trim(self.device, owner, 1)

    def put(self, node: Node, slot: int, *, parts: bool = False) -> None:
        """Make the recurrent state in a sequence's `slot` the checkpoint of `node`.

        `parts` means that another sequence's tokens differ from this sequence's tokens after
        `node`.
        """
        if node.checkpoint is None:
            node.checkpoint = Checkpoint(starts=int(parts))
        self.counts.made += 1
        self.device.put(node, slot)
        self.grown.add(node.owner)
        if node.parent is not None:  # the checkpoint before this one may be worth less now
            self.offer(last_checkpoint(Position.after(node.parent)).node)

    def drop(self, node: Node) -> None:
        """Free all slots of a node's state checkpoint, none of which is in use."""
        checkpoint = node.checkpoint
        if checkpoint is None:
            return
        if checkpoint.readers or checkpoint.coming:
            raise InvariantBroken("a checkpoint is freed that is in use")
        for tier in list(checkpoint.copies):
            self.forget(self.tiers[tier], node)

    def read(self, node: Node) -> None:
        """Count one more lease that may read the node's state checkpoint."""
        checkpoint_of(node).readers += 1
        self.device.candidates.discard(node)

    def unread(self, node: Node) -> None:
        """Count one lease fewer that may read the node's state checkpoint."""
        checkpoint_of(node).readers -= 1
        self.offer(node)

    def used(self, node: Node) -> None:
        """Record a use of the node's state checkpoint, which delays its eviction."""
        checkpoint_of(node).kept = True
        for tier in checkpoint_of(node).copies:
            self.tiers[tier].used(node)

    def offer(self, node: Node) -> None:
        """Make the node's state checkpoint a candidate for eviction in each tier that has it."""
        if node.checkpoint is not None:
            for tier in node.checkpoint.copies:
                self.tiers[tier].offer(node)

    def withdraw(self, node: Node) -> None:
        """Remove the node's state checkpoint from the candidates for eviction."""
        if node.checkpoint is not None:
            for at in self.tiers.values():
                at.candidates.discard(node)

    def adopted(self, node: Node, before: str) -> None:
        """Charge a withdrawn node's state checkpoint to its new owner instead of `before`.

        The copy on disk is sealed for `before`, so it is forgotten.
        """
        checkpoint = node.checkpoint
        if checkpoint is None:
            return
        for tier in checkpoint.copies:
            self.tiers[tier].usage.charge(before, -1)
            self.tiers[tier].usage.charge(node.owner, 1)
        if DISK_TIER in checkpoint.copies:
            self.forget(self.tiers[DISK_TIER], node)
        if checkpoint.copies:
            self.used(node)

    def set_quota(self, owner: str, quota: Quota) -> None:
        """Change an owner's quota in every tier."""
        for at in self.tiers.values():
            at.set_quota(owner, quota)

    def partition(self, parts: Mapping[str, float]) -> None:
        """Divide the slots among the owners, without the device's slots for running sequences."""
        for at in self.tiers.values():
            at.partition(parts, self._for_sequences if at is self.device else 0)

    def trim(self, owner: str) -> None:
        """Evict recurrent states of `owner` above its share of every tier. States in use stay."""
        for at in self.tiers.values():
            if not at.is_exempt(owner):
                self._trim(at, owner)

    def trim_exceeding(self) -> None:
        """Evict recurrent states of owners that may exceed their share, as `trim` does."""
        over = set[str]()
        for at in self.tiers.values():
            over |= at.usage.exceeding
            at.usage.exceeding.clear()
        for owner in sorted(over):
            self.trim(owner)

    def may_pin(self) -> bool:
        """Return whether pinning one more state checkpoint leaves sequences enough slots."""
        return self.device.usage.total - self.num_pinned > self._for_sequences

    def restored(self, node: Node, slot: int) -> None:
        """Make the recurrent state in a disk slot the checkpoint of a node on disk."""
        node.checkpoint = Checkpoint()
        self.tiers[DISK_TIER].allocator.reserve(np.array([slot], dtype=np.int32))
        self.tiers[DISK_TIER].put(node, slot)

    def evict(self, at: TierStates, node: Node) -> None:
        """Evict a copy of the node's state checkpoint because its slot is needed."""
        at.policy_of(node.owner).evicted(node)
        self.counts.evicted += at is self.device
        self.forget(at, node)

    def forget(self, at: TierStates, node: Node) -> None:
        """Free the slot of one copy. The state checkpoint is removed with its last copy."""
        self.erase(at, at.forget(node))
        self.clear(node)

    def clear(self, node: Node) -> None:
        """Remove the node's state checkpoint if no tier has or gets its state."""
        checkpoint = node.checkpoint
        if checkpoint is not None and not (checkpoint.copies or checkpoint.coming):
            node.checkpoint = None

    def erase(self, at: TierStates, slot: int) -> None:
        """Plan to erase a freed slot on disk. Slots of other tiers need no erasure."""
        if at.tier is DISK_TIER:
            self._in_flight.erase(self._sizes.erased_with(slot))

    def _trim(self, at: TierStates, owner: str, more: int = 0) -> bool:
        while at.usage.excess(owner, more):
            node = at.own_victim(owner)
            if node is None:
                return False
            self.evict(at, node)
        return True
