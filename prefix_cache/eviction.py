"""What goes first: a policy, and the set of leaves it may choose from.

Knows: how to order leaves. Does not know: when to evict, or how.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from prefix_cache.tree import Node

SortKey = tuple[float, ...]
Entry = tuple[SortKey, int, Node]

SLACK = 64  # stale entries that are not worth a sweep


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
    """The evictable leaves in the policy's order, kept up to date and never searched for.

    A heap with lazy deletion: `_entries` says which entry of a node counts, and the others are
    skipped when they come up, or swept out when they are the greater part.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._serial = count()  # orders equal keys, so that nodes are never compared
        self._entries: dict[Node, Entry] = {}
        self._heap: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._entries)

    def __contains__(self, node: Node) -> bool:
        return node in self._entries

    def add(self, node: Node) -> None:
        """Put a leaf in its place; one that is here already is placed anew."""
        entry = (self._policy.sort_key(node), next(self._serial), node)
        self._entries[node] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + SLACK:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def discard(self, node: Node) -> None:
        """Forget a node, whether or not it is here."""
        self._entries.pop(node, None)

    def first(self) -> Node | None:
        """Return the leaf to evict first."""
        while self._heap:
            entry = self._heap[0]
            if self._entries.get(entry[2]) is entry:
                return entry[2]
            heappop(self._heap)
        return None

    def misplaced(self) -> list[Node]:
        """Return the nodes whose key has changed since they were added, for checks."""
        return [n for n, (key, _, _) in self._entries.items() if key != self._policy.sort_key(n)]

    def mislaid(self) -> int:
        """Return how many candidates the heap would never bring up, for checks."""
        return len(self._entries) - sum(self._entries.get(e[2]) is e for e in self._heap)
