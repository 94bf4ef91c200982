"""What leases hold of the tree, and so what may be evicted.

A lease is counted at its deepest node alone. A node is held if it has a lease or a held child. When
a node's first hold begins or its last one ends, its parent is updated, and so on up to the first
ancestor for which this changes nothing. The device blocks of all other attached nodes are
evictable: sooner or later each becomes the tail of a leaf that is not held.

In the lower tiers it is the same; a leaf there is a node without a child whose first block lies as
high. A node of which a block is being copied is no candidate in any tier.

Knows: holds, candidates, how many blocks are evictable. Does not know: free lists or owners'
accounts: it returns nodes that nothing holds any more, and its callers free their blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prefix_cache.contest import Contest
from prefix_cache.eviction import Candidates, EvictionPolicy
from prefix_cache.node import NO_TIERS, Node, Position
from prefix_cache.standing import Standing
from prefix_cache.tree import RadixTree
from storage.move import DEVICE_TIER, Tier


class Holds:
    """Keeps the counts on the nodes, the candidates and `evictable_blocks` in step."""

    def __init__(
        self, tree: RadixTree, policy: EvictionPolicy, tiers: Iterable[Tier] = (DEVICE_TIER,)
    ) -> None:
        self.evictable_blocks = 0  # on the device
        self.policy = policy
        self.leaves: dict[Tier, Candidates] = {tier: Candidates(policy) for tier in tiers}
        # Nodes some blocks of which may lie in a tier and higher as well; looked at before use.
        self.doubles: dict[Tier, dict[Node, None]] = {
            tier: {} for tier in self.leaves if tier is not DEVICE_TIER
        }
        self._tree = tree

    @property
    def candidates(self) -> Candidates:
        """The leaves of the device."""
        return self.leaves[DEVICE_TIER]

    def divide(self, standings: Mapping[Tier, Standing]) -> None:
        """Choose victims by the owners' quotas from now on (`Contest`)."""
        self.leaves = {
            tier: Contest(self.policy, standings[tier], leaves)
            for tier, leaves in self.leaves.items()
        }

    def hold(self, node: Node) -> None:
        """Count one lease on `node`."""
        was_held = node.leases or node.held_children
        node.leases += 1
        current = node
        while not was_held:
            if current.offered:
                self.withdraw(current)
            self.evictable_blocks -= current.edge.num_device
            parent = current.parent
            if parent is None:
                break
            was_held = parent.leases or parent.held_children
            parent.held_children += 1
            current = parent

    def let_go(self, node: Node) -> list[Node]:
        """Count one lease less; return the detached nodes that nobody holds any more."""
        node.leases -= 1
        return [] if node.leases or node.held_children else self._no_longer_held(node)

    def cost(self, at: Position) -> int:
        """Return how many blocks would stop being evictable if `at` were held."""
        if at.node.is_held:
            return 0
        blocks, node = min(at.inside, at.node.edge.num_device), at.node.parent
        while node is not None and not node.is_held:
            blocks += node.edge.num_device
            node = node.parent
        return blocks

    def split_at(self, at: Position) -> Node:
        """Return the node that ends exactly at `at`, splitting one if need be."""
        if not at.within:
            return at.node
        upper = self._tree.split(at.node, at.inside)
        for noted in self.doubles.values():
            if at.node in noted:
                noted[upper] = None
        self.offer(at.node)
        self.offer(upper)
        return upper

    def entered(self, node: Node) -> None:
        """A new leaf hangs in the tree, which nobody holds."""
        self.evictable_blocks += node.edge.num_device
        self.policy.entered(node)

    def grown(self, node: Node, lease_of: Node) -> None:
        """A new leaf hangs below `lease_of`, and one lease that held that node holds the leaf."""
        node.leases = 1
        lease_of.held_children += 1
        lease_of.leases -= 1
        self.policy.entered(node)

    def touch(self, node: Node, now: float) -> None:
        """A held node and all on the way to it were used."""
        current = node
        while current.parent is not None:
            current.last_used = now
            current = current.parent

    def found(self, node: Node, now: float) -> None:
        """A request has found a held node and all on the way to it."""
        current = node
        while current.parent is not None:
            current.last_used = now
            current.hits += 1
            current.kept = True
            self.policy.used(current)
            current = current.parent

    def ended(self, node: Node, added: int) -> None:
        """A request that still holds `node` is over; it put the last `added` blocks there."""
        if node.attached:
            self.policy.ended(node, added)

    def trim(self, node: Node, count: int) -> None:
        """Take the last `count` blocks of a leaf out of the tree; their slots are the caller's."""
        edge = node.edge
        before = edge.num_device
        self.policy.left(node, edge.trim(count))
        if node.num_read > edge.num_blocks:
            node.num_read = edge.num_blocks
        self.evictable_blocks += edge.num_device - before
        if edge.num_blocks:
            self.offer(node)
        else:
            self._remove_leaf(node)

    def changed(self, node: Node) -> None:
        """The node's blocks have changed tiers, or a copy of one has begun or ended."""
        told = self._tree.tell(node)
        self.offer(node)
        if told and node.parent is not None:
            self.offer(node.parent)

    def subtree(self, top: Node) -> list[Node]:
        """`top` and all nodes below it."""
        return list(self._tree.nodes(top))

    def detach(self, top: Node) -> tuple[int, list[Node]]:
        """Take a subtree out of every match's way.

        Returns how many blocks the tree forgot, and the nodes that nobody holds. The others
        stay linked to each other until `let_go` returns them, and go on holding the attached
        node above them: whoever reads them reads its blocks too.
        """
        self._tree.unlink(top)
        subtree = self.subtree(top)
        self._tree.num_nodes -= len(subtree)
        free = [node for node in subtree if not node.is_held]
        for node in subtree:
            self.policy.left(node, node.edge.keys)
            self._leave(node)
        for node in free:
            self.evictable_blocks -= node.edge.num_device
            self._tree.unlink(node)
        if top.parent is not None:
            self.offer(top.parent)
        return sum(len(node.edge) for node in subtree), free

    def offer(self, node: Node) -> None:
        """Make a candidate of a node where it is an unheld leaf, and of no other."""
        # What has blocks on the device below it is on the device whole, and no tail anywhere.
        if node.leases or node.held_children or node.device_children or node.shipments:
            tails = NO_TIERS
        else:
            tails = node.tails() if node.attached and node.parent is not None else NO_TIERS
        if node.offered != tails:
            self.withdraw(node)
            node.offered = tails
        for tier in tails:
            self.leaves[tier].add(node)

    def withdraw(self, node: Node) -> None:
        """Forget that a node was a candidate: it is held or being copied now, or has left."""
        for tier in node.offered:
            self.leaves[tier].discard(node)
        node.offered = NO_TIERS

    def _leave(self, node: Node) -> None:
        node.attached = False
        self.withdraw(node)
        for noted in self.doubles.values():
            noted.pop(node, None)

    def _remove_leaf(self, node: Node) -> None:
        self._leave(node)
        self._tree.unlink(node)
        self._tree.num_nodes -= 1
        if node.parent is not None:
            self.offer(node.parent)

    def _no_longer_held(self, node: Node) -> list[Node]:
        nobodys: list[Node] = []
        current = node
        while not (current.leases or current.held_children) and current.parent is not None:
            if current.attached:
                self.evictable_blocks += current.edge.num_device
                self.offer(current)
            else:
                nobodys.append(current)
                self._tree.unlink(current)
            current = current.parent
            current.held_children -= 1
        return nobodys
