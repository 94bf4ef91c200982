"""What leases hold of the tree, and so what may be evicted.

A lease counts on its deepest node alone. A node is held if it has a lease or a held child; that
a node's first hold begins or its last one ends is told to its parent, and no further than to the
first ancestor for which it changes nothing. The blocks of all other attached nodes are
evictable: sooner or later each becomes the tail of a leaf that nobody holds.

Knows: holds, candidates, how many blocks could be had. Does not know: the free list or owners'
accounts; it returns nodes whose blocks are nobody's any more and the cache frees them.
"""

from __future__ import annotations

from prefix_cache.allocator import BlockIds
from prefix_cache.eviction import Candidates, EvictionPolicy
from prefix_cache.tree import Node, Position, RadixTree


class Holds:
    """Keeps the counts on the nodes, the candidates and `evictable_blocks` in step."""

    def __init__(self, tree: RadixTree, policy: EvictionPolicy) -> None:
        self.evictable_blocks = 0
        self.candidates = Candidates(policy)
        self._tree = tree

    def hold(self, node: Node) -> None:
        """Count one lease on `node`."""
        was_held = node.is_held
        node.leases += 1
        current: Node | None = node
        while current is not None and not was_held:
            self.candidates.discard(current)
            self.evictable_blocks -= len(current.edge)
            current = current.parent
            if current is not None:
                was_held = current.is_held
                current.held_children += 1

    def let_go(self, node: Node) -> list[Node]:
        """Count one lease less; return the detached nodes that nobody holds any more."""
        node.leases -= 1
        return [] if node.is_held else self._no_longer_held(node)

    def cost(self, at: Position) -> int:
        """Return how many blocks would stop being evictable if `at` were held."""
        if at.node.is_held:
            return 0
        blocks, node = at.inside, at.node.parent
        while node is not None and not node.is_held:
            blocks += len(node.edge)
            node = node.parent
        return blocks

    def split_at(self, at: Position) -> Node:
        """Return the node that ends exactly at `at`, splitting one if need be."""
        if not at.within:
            return at.node
        upper = self._tree.split(at.node, at.inside)
        if at.node in self.candidates:
            self.candidates.add(at.node)
        return upper

    def entered(self, node: Node) -> None:
        """A new leaf hangs in the tree, below a held parent; the caller holds it next."""
        self.evictable_blocks += len(node.edge)

    def touch(self, node: Node, now: float) -> None:
        """A held node and all on the way to it were used."""
        current: Node | None = node
        while current is not None:
            current.last_used = now
            current = current.parent

    def evict(self, wanted: int) -> tuple[Node, BlockIds] | None:
        """Trim the first candidate by up to `wanted` blocks, from its tail; None: no candidate."""
        node = self.candidates.first()
        if node is None:
            return None
        ids = node.edge.trim(min(wanted, len(node.edge)))
        self.evictable_blocks -= len(ids)
        if len(node.edge):
            self.candidates.add(node)
        else:
            self._remove_leaf(node)
        return node, ids

    def detach(self, top: Node) -> tuple[int, list[Node]]:
        """Take a subtree out of every match's way.

        Returns how many blocks the tree forgot, and the nodes that nobody holds. The others
        stay linked to each other until `let_go` returns them, and go on holding the attached
        node above them: whoever reads them reads its blocks too.
        """
        self._tree.unlink(top)
        subtree = list(self._tree.nodes(top))
        self._tree.num_nodes -= len(subtree)
        free = [node for node in subtree if not node.is_held]
        for node in subtree:
            node.attached = False
        for node in free:
            self.candidates.discard(node)
            self.evictable_blocks -= len(node.edge)
            self._tree.unlink(node)
        self._offer(top.parent)
        return sum(len(node.edge) for node in subtree), free

    def _remove_leaf(self, node: Node) -> None:
        self.candidates.discard(node)
        self._tree.unlink(node)
        self._tree.num_nodes -= 1
        node.attached = False
        self._offer(node.parent)

    def _no_longer_held(self, node: Node) -> list[Node]:
        nobodys: list[Node] = []
        current: Node | None = node
        while current is not None and not current.is_held:
            if current.attached:
                self.evictable_blocks += len(current.edge)
                self._offer(current)
            else:
                nobodys.append(current)
                self._tree.unlink(current)
            current = current.parent
            if current is not None:
                current.held_children -= 1
        return nobodys

    def _offer(self, node: Node | None) -> None:
        """Make a candidate of a node that may just have become an unheld leaf."""
        if node is None or node is self._tree.root or node.is_held or len(node.children):
            return
        self.candidates.add(node)
