"""What goes first: a policy, and the set of leaves it may choose from.

Knows: how to order leaves. Does not know: when to evict, or how.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Protocol

from sortedcontainers import SortedList

from prefix_cache.tree import Node

SortKey = tuple[float, ...]


class EvictionPolicy(Protocol):
    """Which leaf goes first."""

    def sort_key(self, node: Node) -> SortKey:
        """Return a key; the leaf with the least one is evicted first.

        It may depend on what cannot change while the node is an unheld leaf.
        """
        ...


class LeastRecentlyUsed:
    """The leaf unused for longest; of two used at one time, the deeper one."""

    def sort_key(self, node: Node) -> SortKey:
        """Time of last use, then depth in blocks."""
        return (node.last_used, -node.end)


class Candidates:
    """The evictable leaves in the policy's order, kept up to date and never searched for."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._serial = count()  # orders equal keys, so that nodes are never compared
        self._entries: dict[Node, tuple[SortKey, int, Node]] = {}
        self._sorted: SortedList[tuple[SortKey, int, Node]] = SortedList()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Node]:
        return (node for _, _, node in self._sorted)

    def __contains__(self, node: Node) -> bool:
        return node in self._entries

    def add(self, node: Node) -> None:
        """Put a leaf in its place; one that is here already is placed anew."""
        self.discard(node)
        entry = (self._policy.sort_key(node), next(self._serial), node)
        self._entries[node] = entry
        self._sorted.add(entry)

    def discard(self, node: Node) -> None:
        """Forget a node, whether or not it is here."""
        entry = self._entries.pop(node, None)
        if entry is not None:
            self._sorted.remove(entry)

    def first(self) -> Node | None:
        """Return the leaf to evict first."""
        node: Node | None = self._sorted[0][2] if self._entries else None
        return node

    def misplaced(self) -> list[Node]:
        """Return the nodes whose key has changed since they were added, for checks."""
        return [n for n, (key, _, _) in self._entries.items() if key != self._policy.sort_key(n)]
