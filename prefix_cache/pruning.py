"""How blocks are removed from the tree on request: a subtree at a time, held or not.

Leased blocks stay valid for their holders and are freed with the last of their leases.

Knows: the tree, and what frees blocks. Does not know: why a block is to be removed, or how room is
made (`descent`).
"""

from __future__ import annotations

from collections.abc import Iterable

from prefix_cache.holds import Holds
from prefix_cache.namespace import Namespace
from prefix_cache.node import Node, Position
from prefix_cache.supply import Supply
from prefix_cache.traffic import Reason
from prefix_cache.tree import RadixTree


class Pruning:
    """Takes branches out of the tree. One owner thread."""

    def __init__(self, tree: RadixTree, holds: Holds, supply: Supply) -> None:
        self._tree = tree
        self._holds = holds
        self._supply = supply

    def flush(self, namespace: Namespace | None, owner: str | None) -> int:
        """Forget the nodes of this namespace and owner (None: of any), and all below them.

        Returns how many blocks the tree forgot.
        """
        chosen = [
            node
            for node in self._tree.nodes()
            if namespace in (None, node.namespace) and owner in (None, node.owner)
        ]
        return sum(self._detach(node) for node in chosen if node.attached)

    def forget_all(self, found: Iterable[tuple[Node, int]], reason: Reason) -> int:
        """Forget several blocks; returns how many the tree forgot in all."""
        return sum(self.forget_from(node, position, reason) for node, position in found)

    def forget_from(self, node: Node, position: int, reason: Reason | None = None) -> int:
        """Forget the block at `position`, on the way to `node`, and all that builds on it.

        Returns how many blocks the tree forgot: none where that has happened before. With a
        reason they are counted as evicted.
        """
        return self._detach(self._from_block(node, position), reason) if node.attached else 0

    def _detach(self, node: Node, reason: Reason | None = None) -> int:
        if reason is not None:
            self._supply.losses.count_gone(node, reason)
        blocks, nobodys = self._holds.detach(node)
        self._supply.give_back_nodes(nobodys)
        return blocks

    def _from_block(self, node: Node, block: int) -> Node:
        """Return the node on the way to `node` that begins with `block`, splitting if need be."""
        while node.start > block and node.parent is not None:
            node = node.parent
        if node.start < block:
            self._holds.split_at(Position(node, block - node.start, block))
        return node
