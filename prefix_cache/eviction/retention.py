"""Retention: until its mark lapses, a node is evicted after its owner's other nodes.

A node is retained by a mark, for a time that starts again whenever a request finds the node. No
block is held by it: where an owner's room is all retained, what would lapse first goes first. So
retention changes which of an owner's blocks go, and never whose, nor how many.

A prefix is retained as a whole: what comes before a retained block is retained for as long.

Knows: times of nodes. Does not know: marks, or owners' rooms.
"""

from __future__ import annotations

from collections.abc import Callable

from prefix_cache.tree.node import Node


class Retention:
    """The times until which nodes are retained. One owner thread."""

    def __init__(self) -> None:
        self.now = 0.0  # monotonic seconds of the last operation that gave a time

    def keeps(self, node: Node) -> bool:
        """Return whether `node` is retained now."""
        return node.retained_until > self.now

    def retain(self, node: Node, seconds: float) -> None:
        """Retain `node` for at least `seconds` from now on; a longer retention stays."""
        if not self.keeps(node) or node.retained_for < seconds:
            node.retained_for = seconds
        self.used(node)
        node.retained_until = max(node.retained_until, self.now + seconds)

    def used(self, node: Node) -> None:
        """Restart the retention of a node that a request has found."""
        if self.keeps(node):
            node.retained_until = max(node.retained_until, self.now + node.retained_for)

    def may_displace(self, node: Node, victim: Node, admits: Callable[[Node, Node], bool]) -> bool:
        """Return whether `node` may take the room of its owner's `victim`; `admits` breaks ties."""
        if self.keeps(node) and self.keeps(victim) and node.retained_until != victim.retained_until:
            return victim.retained_until < node.retained_until
        if self.keeps(node) != self.keeps(victim):
            return self.keeps(node)
        return admits(node, victim)
