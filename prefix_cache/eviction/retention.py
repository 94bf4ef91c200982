"""Retention: a marked node is evicted after its owner's other nodes, until the mark lapses.

A mark retains a node for a time, which restarts whenever a request finds the node. A mark
guarantees nothing. If all of an owner's blocks are retained, the block whose mark lapses first is
evicted first. So retention does not change how many of an owner's blocks are evicted.

A prefix is retained as a whole. The blocks before a retained block are retained for the same time.
"""

from __future__ import annotations

from collections.abc import Callable

from prefix_cache.tree.node import Node


class Retention:
    """The times until which nodes are retained. Used by one thread only."""

    def __init__(self) -> None:
        self.now = 0.0  # monotonic seconds of the last operation that gave a time

    def keeps(self, node: Node) -> bool:
        """Return whether `node` is retained now."""
        return node.retained_until > self.now

    def retain(self, node: Node, seconds: float) -> None:
        """Retain `node` for at least `seconds` from now on. A retention that ends later stays."""
        if not self.keeps(node) or node.retained_for < seconds:
            node.retained_for = seconds
        self.used(node)
        node.retained_until = max(node.retained_until, self.now + seconds)

    def used(self, node: Node) -> None:
        """Restart the retention of a node that a request has found."""
        if self.keeps(node):
            node.retained_until = max(node.retained_until, self.now + node.retained_for)

    def may_displace(self, node: Node, victim: Node, admits: Callable[[Node, Node], bool]) -> bool:
        """Return whether `node` may take the room of `victim`, which has the same owner.

        `admits` decides if retention does not.
        """
        if self.keeps(node) and self.keeps(victim) and node.retained_until != victim.retained_until:
            return victim.retained_until < node.retained_until
        if self.keeps(node) != self.keeps(victim):
            return self.keeps(node)
        return admits(node, victim)
