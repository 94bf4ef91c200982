"""Reference counts of leases on tree nodes, which determine the evictable blocks.

A lease is counted at its deepest node alone. A node is held if it has a lease or a held child. A
change of a node's state is passed up until an ancestor's state stays the same. The device blocks of
all attached nodes that are not held are evictable.

In the lower tiers, a node is a leaf of a tier if no child begins in that tier or in a faster tier.
A node with a block being copied is no candidate in any tier.

This module returns nodes that are no longer held. Callers free the nodes' blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prefix_cache.eviction.eviction_policy import (
    Candidates,
    EvictionPolicy,
    RedundantCopies,
    SortKey,
)
from prefix_cache.eviction.quota_usage import QuotaUsage
from prefix_cache.eviction.retention import Retention
from prefix_cache.eviction.victim_queue import VictimQueue
from prefix_cache.tree.node import NO_TIERS, Node, Position
from prefix_cache.tree.tree import RadixTree
from storage.move import DEVICE_TIER, Tier


class RefCounts:
    """Reference counts on nodes, kept consistent with the candidates and `evictable_blocks`."""

    def __init__(
        self, tree: RadixTree, policy: EvictionPolicy, tiers: Iterable[Tier] = (DEVICE_TIER,)
    ) -> None:
        self.evictable_blocks = 0
        self._policy = policy
        # policies by owner, after `set_apart`
        self._policies: dict[str, EvictionPolicy] | None = None
        self.retention = Retention()
        self.leaves: dict[Tier, Candidates] = {
            tier: Candidates(policy, self.retention) for tier in tiers
        }
        self.redundant = {
            tier: RedundantCopies(tier) for tier in self.leaves if tier is not DEVICE_TIER
        }
        self.tree = tree

    @property
    def candidates(self) -> Candidates:
        """The evictable leaves of the device tier."""
        return self.leaves[DEVICE_TIER]

    def policy_of(self, owner: str) -> EvictionPolicy:
        """Return the policy that orders `owner`'s blocks: the owner's own or the shared policy.

        A shared policy that learns would let an owner observe what other owners have used.
        """
        if self._policies is None:
            return self._policy
        policy = self._policies.get(owner)
        if policy is None:
            policy = self._policies[owner] = self._policy.fresh()
        return policy

    def sort_key(self, node: Node) -> SortKey:
        """Order a node by retention, then by the policy of its owner."""
        return (self.retention.keeps(node), *self.policy_of(node.owner).sort_key(node))

    def divide(self, quota_usages: Mapping[Tier, QuotaUsage]) -> None:
        """Choose victims by the owners' quotas from now on (`VictimQueue`)."""
        self.leaves = {
            tier: VictimQueue(self.policy_of, quota_usages[tier], leaves, self.retention)
            for tier, leaves in self.leaves.items()
        }

    def set_apart(self, quota_usages: Mapping[Tier, QuotaUsage]) -> None:
        """Isolate owners, so that no owner affects the eviction of another owner's blocks.

        Each owner gets a fresh policy, which has learnt nothing of other owners.
        """
        if self._policies is None:
            self._policies = {}
            for node in self.tree.nodes():
                self.policy_of(node.owner).restored(node)
        self.divide(quota_usages)
        for redundant in self.redundant.values():
            redundant.set_apart()

    def inc_ref(self, node: Node) -> None:
        """Count one more lease on `node`."""
        was_held = node.leases or node.held_children
        node.leases += 1
        current = node
        while not was_held:
            if current.candidate_tiers:
                self.withdraw(current)
            self.evictable_blocks -= current.edge.num_device
            parent = current.parent
            if parent is None:
                break
            was_held = parent.leases or parent.held_children
            parent.held_children += 1
            current = parent

    def dec_ref(self, node: Node) -> list[Node]:
        """Count one lease fewer on `node`. Return detached nodes that no lease holds any more."""
        node.leases -= 1
        return [] if node.leases or node.held_children else self._no_longer_held(node)

    def cost(self, at: Position) -> int:
        """Count the blocks that would stop being evictable if a lease held `at`."""
        if at.node.is_held:
            return 0
        blocks, node = min(at.inside, at.node.edge.num_device), at.node.parent
        while node is not None and not node.is_held:
            blocks += node.edge.num_device
            node = node.parent
        return blocks

    def split_at(self, at: Position) -> Node:
        """Return the node that ends exactly at `at`, after a split if needed."""
        if not at.within:
            return at.node
        upper = self.tree.split(at.node, at.inside)
        for noted in self.redundant.values():
            if at.node in noted:
                noted.add(upper)
        self.offer(at.node)
        self.offer(upper)
        return upper

    def entered(self, node: Node) -> None:
        """Count a new leaf of the tree that no lease holds."""
        self.evictable_blocks += node.edge.num_device
        self.policy_of(node.owner).entered(node)

    def grown(self, node: Node, lease_of: Node) -> None:
        """Move one lease from the node `lease_of` to the new leaf below it."""
        node.leases = 1
        lease_of.held_children += 1
        lease_of.leases -= 1
        self.policy_of(node.owner).entered(node)

    def touch(self, node: Node, now: float) -> None:
        """Update the last use of a held node and of all its ancestors."""
        while node.parent is not None:
            node.last_used = now
            node = node.parent

    def found(self, way: Iterable[Node], now: float) -> None:
        """Count one hit on a held node and on all its ancestors."""
        for current in way:
            current.last_used = now
            current.hits += 1
            current.kept = True
            self.retention.used(current)
            self.policy_of(current.owner).used(current)

    def ended(self, node: Node, added: int) -> None:
        """Tell the policy that a request whose lease ends at `node` has ended.

        The request put the last `added` blocks into `node`.
        """
        if node.attached:
            self.policy_of(node.owner).ended(node, added)

    def trim(self, node: Node, count: int) -> None:
        """Remove the last `count` blocks of a leaf from the tree. The caller frees their slots."""
        edge = node.edge
        before = edge.num_device
        keys = edge.trim(count)
        node.trims += 1
        self.policy_of(node.owner).left(node, keys)
        if self.tree.changes is not None:
            self.tree.changes.removed(keys)
        if node.num_read > edge.num_blocks:
            node.num_read = edge.num_blocks
        self.evictable_blocks += edge.num_device - before
        if edge.num_blocks:
            self.tree.when_shorter(node)
            self.offer(node)
        else:
            self._remove_leaf(node)

    def changed(self, node: Node) -> None:
        """Update counts and candidates after blocks changed tiers, or a copy began or ended."""
        counted_in_parent = self.tree.tell(node)
        self.offer(node)
        if counted_in_parent and node.parent is not None:
            self.offer(node.parent)

    def detach(self, top: Node) -> tuple[int, list[Node]]:
        """Detach a subtree, so that no match finds it.

        Returns the number of blocks that the tree forgot, and the nodes that are not held. Held
        nodes stay linked until `dec_ref` returns them. The attached node above them stays held,
        because a lease on a detached node also reads the blocks above.
        """
        self.tree.unlink(top)
        subtree = list(self.tree.nodes(top))
        self.tree.num_nodes -= len(subtree)
        free = [node for node in subtree if not node.is_held]
        for node in subtree:
            keys = node.edge.keys
            self.policy_of(node.owner).left(node, keys)
            if self.tree.changes is not None:
                self.tree.changes.removed(keys)
            self._leave(node)
        for node in free:
            self.evictable_blocks -= node.edge.num_device
            self.tree.unlink(node)
        if top.parent is not None:
            self.offer(top.parent)
        return sum(len(node.edge) for node in subtree), free

    def note_redundant(self, node: Node) -> None:
        """Record that some blocks of `node` may lie in several tiers."""
        if node.attached:
            for noted in self.redundant.values():
                noted.add(node)

    def offer(self, node: Node) -> None:
        """Make a node a candidate in exactly the tiers where it is an unheld leaf."""
        # A node with a child on the device is on the device as a whole, so it is a leaf in no tier.
        if node.leases or node.held_children or node.device_children or node.transfers:
            tails = NO_TIERS
        else:
            tails = node.tails() if node.attached and node.parent is not None else NO_TIERS
        if node.candidate_tiers != tails:
            self.withdraw(node)
            node.candidate_tiers = tails
        for tier in tails:
            self.leaves[tier].add(node)

    def withdraw(self, node: Node) -> None:
        """Withdraw a node from the candidates for eviction in all tiers."""
        for tier in node.candidate_tiers:
            self.leaves[tier].discard(node)
        node.candidate_tiers = NO_TIERS

    def _leave(self, node: Node) -> None:
        node.attached = False
        self.tree.left(node)
        self.withdraw(node)
        for noted in self.redundant.values():
            noted.discard(node)

    def _remove_leaf(self, node: Node) -> None:
        self._leave(node)
        self.tree.unlink(node)
        self.tree.num_nodes -= 1
        if node.parent is not None:
            self.offer(node.parent)

    def _no_longer_held(self, node: Node) -> list[Node]:
        unreferenced: list[Node] = []
        current = node
        while not (current.leases or current.held_children) and current.parent is not None:
            if current.attached:
                self.evictable_blocks += current.edge.num_device
                self.offer(current)
            else:
                unreferenced.append(current)
                self.tree.unlink(current)
            current = current.parent
            current.held_children -= 1
        return unreferenced
