"""Retention: until it lapses, a node is evicted after all others of its owner.

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
    """The time by which nodes are retained. One owner thread."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds, monotonic: of the last operation that had a time

    def keeps(self, node: Node) -> bool:
        """Return whether `node` is retained now."""
        return node.retained_until > self.now

    def retain(self, node: Node, seconds: float) -> None:
        """Retain `node` from now on for at least `seconds`; a longer time stays."""
        if not self.keeps(node) or node.retained_for < seconds:
            node.retained_for = seconds
        self.used(node)
        node.retained_until = max(node.retained_until, self.now + seconds)

    def used(self, node: Node) -> None:
        """Restart the time of a retained node, which a request has found."""
        if self.keeps(node):
            node.retained_until = max(node.retained_until, self.now + node.retained_for)

    def may_displace(self, node: Node, victim: Node, admits: Callable[[Node, Node], bool]) -> bool:
        """Return whether `node` may have its owner's `victim`'s room: by `admits` among equals."""
        if self.keeps(node) and self.keeps(victim) and node.retained_until != victim.retained_until:
            return victim.retained_until < node.retained_until
        if self.keeps(node) != self.keeps(victim):
            return self.keeps(node)
        return admits(node, victim)
