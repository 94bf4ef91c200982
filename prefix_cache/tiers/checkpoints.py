"""The state slots of the device, and the checkpoints in them.

    slot 0      nobody's: rows from the first token on name it, and padding
    from 1 on   free, a running sequence's (`leases.lease_states`), or a node's checkpoint

A checkpoint lasts as long as its node's last block lies in any tier, unless its slot is needed:
for a sequence, or for a checkpoint of an owner that has its share already. One that a lease may
still read stays. Whose goes first is decided as for blocks (`eviction.victim_queue`), which of
theirs by what it saves (`eviction.checkpoint_worth`), marked prefixes' after others.

Where tiers are partitioned, half of the slots are for sequences, and each owner has its part of the
other half.

Knows: slots, nodes, owners. Does not know: what is in a slot, or which positions deserve one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prefix_cache.errors import InvariantBroken
from prefix_cache.eviction.checkpoint_worth import CheckpointWorth, checkpoint_of
from prefix_cache.eviction.eviction_policy import Candidates
from prefix_cache.eviction.quota_usage import QuotaUsage
from prefix_cache.eviction.retention import Retention
from prefix_cache.eviction.shares import PUBLISHED, Quota
from prefix_cache.eviction.victim_queue import VictimQueue
from prefix_cache.tiers.tier_pools import BlockAllocator
from prefix_cache.tree.node import Checkpoint, Node
from storage.move import FIRST_SLOT

SEQUENCE_SLOTS = 3  # slots of a running sequence
LEAST_SLOTS = SEQUENCE_SLOTS + 1  # with the checkpoint that a sequence starts from
PART_OF_SEQUENCES = 2  # half of the slots, where tiers are partitioned or prefixes are pinned


@dataclass(slots=True)
class CheckpointCounts:
    """Counts of checkpoints since the start."""

    made: int = 0
    hits: int = 0  # sequences that started from one
    evicted: int = 0  # because their slots were needed
    refused: int = 0  # states that were to be kept, and no slot was there for them


class Checkpoints:
    """The state slots of one cache. One owner thread."""

    def __init__(self, num_states: int, retention: Retention) -> None:
        """Divide `num_states` slots; 0: the model has no recurrent layers, and needs none.

        Raises ValueError for fewer than one sequence needs.
        """
        if 0 < num_states < FIRST_SLOT + LEAST_SLOTS:
            raise ValueError(f"{num_states} state slots are too few for one sequence")
        self.allocator = BlockAllocator(num_states)
        self.allocator.reserve(np.arange(min(num_states, FIRST_SLOT), dtype=np.int32))
        self.usage = QuotaUsage(max(num_states - FIRST_SLOT, 0))
        self.counts = CheckpointCounts()
        self.num_kept = 0  # checkpoints
        self.num_pinned = 0  # checkpoints of pinned prefixes
        self._retention = retention
        self._policy = CheckpointWorth()
        self._policies: dict[str, CheckpointWorth] | None = None  # by owner, if they are set apart
        self.candidates: Candidates = Candidates(self._policy, retention)  # none is being read

    @property
    def num_leased(self) -> int:
        """Number of slots that sequences hold."""
        return self.usage.total - self.allocator.num_free - self.num_kept

    def policy_of(self, owner: str) -> CheckpointWorth:
        """Return the policy of `owner`'s checkpoints: the shared one, or its own if set apart."""
        if self._policies is None:
            return self._policy
        return self._policies.setdefault(owner, self._policy.fresh())

    def can_take(self, count: int, beside: Node | None = None) -> bool:
        """Return whether `count` slots can be freed now without the checkpoint of `beside`."""
        free = self.allocator.num_free
        if free >= count:
            return True
        if self.usage.parts and self.num_leased:
            return False  # others' parts are broken into rather than a sequence never served
        candidates = len(self.candidates) - (beside is not None and beside in self.candidates)
        return free + candidates >= count

    def take(self, count: int, owner: str) -> list[int] | None:
        """Return `count` slots for `owner`, evicting checkpoints if need be; None: impossible now.

        Where it is None nothing has changed.
        """
        if not self.can_take(count):
            return None
        while self.allocator.num_free < count:
            self._evict(self._victim(owner))
        slots: list[int] = self.allocator.allocate(count).tolist()
        return slots

    def give_back(self, slots: list[int]) -> None:
        """Free slots of a sequence."""
        self.allocator.free(np.array(slots, dtype=np.int32))

    def may_put(self, owner: str) -> bool:
        """Return whether `owner` may have one more checkpoint; evicts own ones if need be."""
        return bool(self.usage.parts and owner == PUBLISHED) or self.trim(owner, 1)

    def put(self, node: Node, slot: int) -> None:
        """Make the state in a sequence's `slot` the checkpoint of `node`, which is in the tree."""
        node.checkpoint = Checkpoint(slot)
        self.num_kept += 1
        self.counts.made += 1
        self.usage.charge(node.owner, 1)
        self.used(node)

    def drop(self, node: Node) -> None:
        """Free the slot of a node's checkpoint, if it has one; no lease may read it."""
        checkpoint = node.checkpoint
        if checkpoint is None:
            return
        if checkpoint.readers:
            raise InvariantBroken("a checkpoint is freed that a lease may read")
        self.candidates.discard(node)
        node.checkpoint = None
        self.num_kept -= 1
        self.usage.charge(node.owner, -1)
        self.give_back([checkpoint.slot])

    def read(self, node: Node) -> None:
        """Note that one more lease may read the node's checkpoint."""
        checkpoint_of(node).readers += 1
        self.candidates.discard(node)

    def unread(self, node: Node) -> None:
        """Note that a lease cannot read the node's checkpoint any more."""
        checkpoint_of(node).readers -= 1
        self.offer(node)

    def used(self, node: Node) -> None:
        """Note that the node's checkpoint was of use."""
        self.policy_of(node.owner).used(node)
        self.offer(node)

    def offer(self, node: Node) -> None:
        """Make a node's checkpoint a candidate at its present place, unless a lease may read it."""
        checkpoint = node.checkpoint
        if checkpoint is not None and node.attached and not checkpoint.readers:
            checkpoint.priority = self.policy_of(node.owner).priority(node)
            self.candidates.add(node)

    def withdraw(self, node: Node) -> None:
        """Withdraw a node that leaves the tree, or changes its owner, from the candidates."""
        if node.checkpoint is not None:
            self.candidates.discard(node)

    def adopted(self, node: Node, before: str) -> None:
        """Charge the checkpoint of a node that was withdrawn, and `before`'s, to its new owner."""
        if node.checkpoint is not None:
            self.usage.charge(before, -1)
            self.usage.charge(node.owner, 1)
            self.used(node)

    def set_quota(self, owner: str, quota: Quota) -> None:
        """Change an owner's quota, and choose victims by quotas from now on."""
        is_first = not self.usage.quotas
        self.usage.set_quota(owner, quota)
        if is_first:
            self._divide()

    def partition(self, parts: Mapping[str, float]) -> None:
        """Give each owner a part of the slots that are not for sequences; owners are set apart."""
        self.usage.partition(parts, -(-self.usage.total // PART_OF_SEQUENCES))
        self._policies = {}
        self._divide()
        for node in list(self.candidates):
            self.used(node)

    def trim(self, owner: str, more: int = 0) -> bool:
        """Evict until `owner` keeps to its share with `more` checkpoints; False: one is read."""
        while self.usage.excess(owner, more):
            node = self.candidates.own(owner)
            if node is None:
                return False
            self._evict(node)
        return True

    def trim_exceeding(self) -> None:
        """Trim the owners that may be over their share."""
        exceeding, self.usage.exceeding = sorted(self.usage.exceeding), set()
        for owner in exceeding:
            if not (self.usage.parts and owner == PUBLISHED):
                self.trim(owner)

    def may_pin(self) -> bool:
        """Return whether one more checkpoint may be pinned beside what sequences need."""
        total = self.usage.total
        return total - self.num_pinned > max(total // PART_OF_SEQUENCES, LEAST_SLOTS)

    def _divide(self) -> None:
        self.candidates = VictimQueue(
            self.policy_of, self.usage, list(self.candidates), self._retention
        )

    def _victim(self, owner: str) -> Node:
        """Return the node whose checkpoint goes first; priorities that have grown are renewed."""
        while (chosen := self.candidates.choose(owner, 1, 0)) is not None:
            node = chosen[0]
            if self.policy_of(node.owner).priority(node) <= checkpoint_of(node).priority:
                return node
            self.offer(node)
        raise InvariantBroken("state slots were promised that no checkpoint can give")

    def _evict(self, node: Node) -> None:
        self.policy_of(node.owner).evicted(node)
        self.counts.evicted += 1
        self.drop(node)
