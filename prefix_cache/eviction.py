"""What is evicted first: a policy, and the set of leaves it may choose from.

Knows: how to order leaves. Does not know: when to evict, or how. More policies are in `policies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from prefix_cache.node import Node

SortKey = tuple[float, ...]
Entry = tuple[Any, ...]  # a sort key's numbers, a serial number, a node: compared in one go

SLACK = 64  # stale entries that are not worth a sweep


class EvictionPolicy(ABC):
    """Which leaf is evicted first.

    `sort_key` alone makes a policy. The methods below it have defaults: questions about new and
    pushed-down nodes, and notices of what happens to nodes.
    """

    @abstractmethod
    def sort_key(self, node: Node) -> SortKey:
        """Return a key; the leaf with the least one is evicted first, in every tier.

        It may depend only on what cannot change while the node is an unheld leaf.
        """

    def admits(self, node: Node, victim: Node) -> bool:
        """Whether `node`, pushed down a tier, may have the room of `victim` there."""
        return self.sort_key(victim) < self.sort_key(node)

    def new_blocks(self, keys: bytes) -> int:  # noqa: ARG002 - a policy may ask
        """How many leading blocks of a run of new blocks are to become a node of their own.

        0: the whole run may be one node.
        """
        return 0

    def may_grow(self, node: Node) -> bool:  # noqa: ARG002 - a policy may ask
        """Whether new blocks may become part of `node`, behind which no other prompt continues."""
        return True

    def entered(self, node: Node) -> None:  # noqa: B027 - most need not be told
        """Notice that `node` has been put in the tree."""

    def restored(self, node: Node) -> None:  # noqa: B027
        """Notice that `node` has entered from disk after a start; `seen` are its uses before."""

    def used(self, node: Node) -> None:  # noqa: B027
        """Notice that a request has found `node`; its `hits` and `last_used` are up to date."""

    def ended(self, node: Node, added: int) -> None:  # noqa: B027
        """Notice that a request whose lease ends at `node` is over.

        It has put the last `added` blocks in the tree. The nodes on the way are still held, so what
        their keys depend on may change here.
        """

    def left(self, node: Node, keys: bytes) -> None:  # noqa: B027
        """Notice that blocks with these keys, the last ones of `node`, have left the tree."""


class LeastRecentlyUsed(EvictionPolicy):
    """The leaf that was unused for longest; of two last used at one time, the deeper one."""

    def sort_key(self, node: Node) -> SortKey:
        """Time of last use, then depth in blocks."""
        return (node.last_used, -node.start - node.edge.num_blocks)


class Candidates:
    """The evictable leaves in the policy's order; kept up to date, so that none is searched for.

    A heap with lazy deletion: `_entries` says which entry of a node counts, and the others are
    skipped when they come up, or swept out when they are the greater part.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._serial = count()  # orders equal keys, so that nodes are never compared
        self._entries: dict[Node, Entry] = {}  # the entry that counts
        self._heap: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._entries)

    def __contains__(self, node: Node) -> bool:
        return node in self._entries

    def add(self, node: Node) -> None:
        """Put a leaf in its place; one that is here already is placed anew."""
        self._entries[node] = entry = (*self._policy.sort_key(node), next(self._serial), node)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + SLACK:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)

    def discard(self, node: Node) -> None:
        """Forget a node, whether or not it is here."""
        self._entries.pop(node, None)

    def first(self) -> Node | None:
        """Return the leaf to evict first when no particular owner wants the room."""
        chosen = self.choose("", 1, 0)
        return None if chosen is None else chosen[0]

    def choose(self, owner: str, wanted: int, more: int) -> tuple[Node, int] | None:  # noqa: ARG002 - quotas ask
        """Return the leaf to evict first, and how many of its blocks; None: there is none.

        `owner` ("": none in particular) wants room for `more` blocks that it does not hold yet; up
        to `wanted` blocks are to be evicted now.
        """
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            node: Node = entry[-1]
            if entries.get(node) is entry:
                return node, wanted
            heappop(heap)
        return None

    spare = choose  # `Contest` overrides it: leaves alone what is below a floor

    def own(self, owner: str) -> Node | None:  # noqa: ARG002 - without quotas there are no ceilings
        """Return the leaf to evict because `owner` is over its ceiling; None without quotas."""
        return None

    def admits(self, node: Node, victim: Node) -> bool:
        """Whether `node`, pushed down, may have the room of `victim`."""
        return self._policy.admits(node, victim)

    def outdated(self) -> list[Node]:
        """Return the nodes whose key has changed since they were added, for checks."""
        counted = [entry for entry in self._heap if self._counts(entry)]
        return [node for *key, _, node in counted if tuple(key) != self._policy.sort_key(node)]

    def num_unreachable(self) -> int:
        """Return how many candidates the heap would never bring up, for checks."""
        return len(self._entries) - sum(map(self._counts, self._heap))

    def _counts(self, entry: Entry) -> bool:
        return self._entries.get(entry[-1]) is entry
