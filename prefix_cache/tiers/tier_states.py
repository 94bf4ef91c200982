"""The slots of recurrent states in one tier: which are free, and who is charged.

The owner who gives up a state checkpoint is chosen as for blocks (`eviction.victim_queue`). The
checkpoint is chosen by the tokens that it saves (`eviction.checkpoint_worth`). Checkpoints of
marked prefixes go last.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prefix_cache.errors import InvariantBroken
from prefix_cache.eviction.checkpoint_worth import CheckpointWorth, checkpoint_of
from prefix_cache.eviction.eviction_policy import Candidates
from prefix_cache.eviction.quota_usage import QuotaUsage
from prefix_cache.eviction.retention import Retention
from prefix_cache.eviction.shares import PUBLISHED, Quota
from prefix_cache.eviction.victim_queue import VictimQueue
from prefix_cache.tiers.tier_pools import BlockAllocator
from prefix_cache.tree.node import Node, StateCopy
from storage.move import DEVICE_TIER, FIRST_SLOT, Tier


class TierStates:
    """The state slots of one tier and their checkpoints. Used by one thread only."""

    def __init__(self, tier: Tier, num_slots: int, retention: Retention) -> None:
        """Start with all slots free, except the device's slot 0, which is never used."""
        nobodys = min(num_slots, FIRST_SLOT) if tier is DEVICE_TIER else 0
        self.tier = tier
        self.allocator = BlockAllocator(num_slots)
        self.allocator.reserve(np.arange(nobodys, dtype=np.int32))
        self.usage = QuotaUsage(num_slots - nobodys)
        self.num_kept = 0
        self.num_coming = 0
        self.num_held = 0  # number of slots in owners' partitions that running sequences hold
        self._retention = retention
        self._policy = CheckpointWorth(tier)
        # policies by owner, if partitioned
        self._policies: dict[str, CheckpointWorth] | None = None
        # copies that are neither being read nor being copied
        self.candidates: Candidates = Candidates(self._policy, retention)

    @property
    def num_used(self) -> int:
        """The number of slots that hold a state checkpoint or are being filled with one."""
        return self.num_kept + self.num_coming

    def policy_of(self, owner: str) -> CheckpointWorth:
        """Return the policy that orders `owner`'s state checkpoints."""
        if self._policies is None:
            return self._policy
        return self._policies.setdefault(owner, self._policy.fresh())

    def is_exempt(self, owner: str) -> bool:
        """Return whether partitions do not limit `owner`, who owns published prefixes."""
        return bool(self.usage.parts) and owner == PUBLISHED

    def take(self, count: int) -> list[int]:
        """Take `count` slots, which the caller knows to be free."""
        slots: list[int] = self.allocator.allocate(count).tolist()
        return slots

    def give_back(self, slots: list[int]) -> None:
        """Free slots that are charged to no owner."""
        self.allocator.free(np.array(slots, dtype=np.int32))

    def put(self, node: Node, slot: int) -> None:
        """Record that `slot` has the node's whole recurrent state, and charge the node's owner."""
        self.usage.charge(node.owner, 1)
        self._add(node, slot)

    def hold(self, owner: str) -> int:
        """Take a free slot for a sequence of `owner`, and charge `owner`."""
        self.num_held += 1
        self.usage.charge(owner, 1)
        return self.take(1)[0]

    def end_hold(self, owner: str) -> None:
        """Stop charging one held slot to `owner`. The sequence keeps the slot."""
        self.num_held -= 1
        self.usage.charge(owner, -1)

    def begin(self, node: Node) -> int:
        """Take a free slot for a copy of the node's checkpoint, and charge the owner."""
        self.num_coming += 1
        self.usage.charge(node.owner, 1)
        return self.take(1)[0]

    def land(self, node: Node, slot: int) -> None:
        """Record that the copy to `slot` is whole."""
        self.num_coming -= 1
        self._add(node, slot)

    def fail(self, node: Node, slot: int) -> None:
        """Record that the copy to `slot` failed, and free the slot."""
        self.num_coming -= 1
        self.usage.charge(node.owner, -1)
        self.give_back([slot])

    def forget(self, node: Node) -> int:
        """Free the slot of the node's copy in this tier, and return the slot."""
        self.candidates.discard(node)
        slot = checkpoint_of(node).copies.pop(self.tier).slot
        self.num_kept -= 1
        self.usage.charge(node.owner, -1)
        self.give_back([slot])
        return slot

    def used(self, node: Node) -> None:
        """Record a use of the node's state checkpoint."""
        self.policy_of(node.owner).used(node)
        self.offer(node)

    def offer(self, node: Node) -> None:
        """Make the node's copy in this tier a candidate for eviction, unless it is in use."""
        checkpoint = checkpoint_of(node)
        is_read = self.tier is DEVICE_TIER and checkpoint.readers
        if is_read or checkpoint.coming or not node.attached:
            self.candidates.discard(node)
        else:
            checkpoint.copies[self.tier].priority = self.policy_of(node.owner).priority(node)
            self.candidates.add(node)

    def victim(self, owner: str, *, spares: bool = False) -> Node | None:
        """Return the first node to lose its copy for `owner`'s needs, or None if all are in use.

        With `spares`, owners below their floors give up no copy. Updates outdated priorities.
        """
        choose = self.candidates.spare if spares else self.candidates.choose
        while (chosen := choose(owner, 1, int(spares))) is not None:
            if self._is_up_to_date(chosen[0]):
                return chosen[0]
        return None

    def own_victim(self, owner: str) -> Node | None:
        """Return the first of `owner`'s nodes to lose its copy, or None if all are in use."""
        while (node := self.candidates.own(owner)) is not None:
            if self._is_up_to_date(node):
                return node
        return None

    def set_quota(self, owner: str, quota: Quota) -> None:
        """Change an owner's quota, and choose victims by quotas from now on."""
        is_first = not self.usage.quotas
        self.usage.set_quota(owner, quota)
        if is_first:
            self._divide()

    def partition(self, parts: Mapping[str, float], beside: int) -> None:
        """Give each owner its own policy, and a partition of all slots except `beside` slots."""
        self.usage.partition(parts, beside)
        self._policies = {}
        self._divide()
        for node in list(self.candidates):
            self.used(node)

    def _add(self, node: Node, slot: int) -> None:
        checkpoint_of(node).copies[self.tier] = StateCopy(slot)
        self.num_kept += 1
        self.used(node)

    def _divide(self) -> None:
        self.candidates = VictimQueue(
            self.policy_of, self.usage, list(self.candidates), self._retention
        )

    def _is_up_to_date(self, node: Node) -> bool:
        """Return whether the node is at the right place in the order. If not, move it there."""
        priority = checkpoint_of(node).copies[self.tier].priority
        if self.policy_of(node.owner).priority(node) <= priority:
            return True
        self.offer(node)
        if node not in self.candidates:
            raise InvariantBroken("a checkpoint that is in use was to be evicted")
        return False
