"""The order of eviction: redundant copies first, then leaves in the order of a policy.

Retained leaves come after all other leaves, in the order in which their retention lapses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from prefix_cache.eviction.retention import Retention
from prefix_cache.tree.edge import Places
from prefix_cache.tree.node import Node
from prefix_cache.tree.residency import BIT, DEVICE, HOST, MOVING
from storage.move import Tier

SortKey = tuple[float, ...]
Entry = tuple[Any, ...]  # a sort key's numbers, a serial number and a node, compared as a tuple

# the heaps are cleaned when they have this many more stale entries than valid entries
SLACK = 64
ABOVE = {Tier.HOST: DEVICE, Tier.DISK: DEVICE | HOST}
# A table for `bytes.translate`, indexed by residency. The table has 1 for a block that has copies
# in this tier and in a faster tier and is not being copied.
_IS_DOUBLE = {
    tier: bytes(bool(s & BIT[tier] and s & above and not s & MOVING) for s in range(256))
    for tier, above in ABOVE.items()
}


class EvictionPolicy(ABC):
    """An order in which leaves are evicted.

    A policy must define `sort_key`. The other methods have defaults.
    """

    @abstractmethod
    def sort_key(self, node: Node) -> SortKey:
        """Return the sort key of a leaf.

        In every tier, the leaf with the lowest key is evicted first.

        The key may depend only on values that stay the same while the node is an unheld leaf.
        """

    def admits(self, node: Node, victim: Node) -> bool:
        """Return whether `node`, when it is copied down a tier, may replace `victim` there."""
        return self.sort_key(victim) < self.sort_key(node)

    def fresh(self) -> EvictionPolicy:
        """Return a policy with the same settings that has learnt nothing yet."""
        return self

    def new_blocks(self, keys: bytes) -> int:  # noqa: ARG002 - a policy may ask
        """Return how many leading blocks of a run of new blocks should form a separate node.

        0 means that the whole run may be one node.
        """
        return 0

    def may_grow(self, node: Node) -> bool:  # noqa: ARG002 - a policy may ask
        """Return whether new blocks may be appended to `node`, where no prompt branches off."""
        return True

    def entered(self, node: Node) -> None:  # noqa: B027 - most ignore it
        """Record that `node` has been added to the tree."""

    def restored(self, node: Node) -> None:  # noqa: B027
        """Record that `node` was restored from disk. `node.seen` counts uses before the restart."""

    def used(self, node: Node) -> None:  # noqa: B027
        """Record that a request has found `node`, whose `hits` and `last_used` are up to date."""

    def ended(self, node: Node, added: int) -> None:  # noqa: B027
        """Record that a request whose lease ends at `node` has ended.

        The request added the last `added` blocks to the tree. The nodes on its path are still held,
        so a policy may change values on which their sort keys depend.
        """

    def left(self, node: Node, keys: bytes) -> None:  # noqa: B027
        """Record that the last blocks of `node`, with these keys, have left the tree."""


class LeastRecentlyUsed(EvictionPolicy):
    """The LRU policy: evict the leaf unused for longest, and among equals the deeper leaf."""

    def sort_key(self, node: Node) -> SortKey:
        return (node.last_used, -node.start - node.edge.num_blocks)


class Candidates:
    """A heap of the evictable leaves of a tier, in the policy's order.

    The heap has lazy deletion. `_entries` has each node's valid entry. Stale entries are skipped
    when they come up, and are removed when they are the majority. A second heap has the retained
    leaves, in the order in which their marks lapse. A leaf whose mark has lapsed moves to the first
    heap before a leaf is chosen. So sort keys never change with time.
    """

    def __init__(self, policy: EvictionPolicy, retention: Retention | None = None) -> None:
        """Order nodes by `policy`. Without `retention`, no retention mark lapses."""
        self._policy = policy
        self._retention = retention or Retention()
        self._serial = count()  # numbers that break ties, so that nodes are never compared
        self._entries: dict[Node, Entry] = {}
        self.heap: list[Entry] = []  # callers read the heap but never change it
        self._retained: list[Entry] = []  # entries that move to `heap` once their marks lapse

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._entries)

    def __contains__(self, node: Node) -> bool:
        return node in self._entries

    def add(self, node: Node) -> None:
        """Add a leaf in order. A leaf that is already present is reordered."""
        key = self._policy.sort_key(node)
        if self._retention.keeps(node):
            entry = (node.retained_until, *key, next(self._serial), node)
            heappush(self._retained, entry)
        else:
            entry = (*key, next(self._serial), node)
            heappush(self.heap, entry)
        self._entries[node] = entry
        if len(self.heap) + len(self._retained) > 2 * len(self._entries) + SLACK:
            self.heap = self._swept(self.heap)
            self._retained = self._swept(self._retained)

    def discard(self, node: Node) -> None:
        """Remove a node if it is present."""
        self._entries.pop(node, None)

    def first(self) -> Node | None:
        """Return the leaf to evict first when no particular owner needs the room."""
        chosen = self.choose("", 1, 0)
        return None if chosen is None else chosen[0]

    def choose(self, owner: str, wanted: int, more: int) -> tuple[Node, int] | None:  # noqa: ARG002 - quotas ask
        """Return the leaf to evict first and the number of its blocks to evict, if any.

        `owner` wants room for `more` blocks beyond its present blocks. An empty name means no
        particular owner. At most `wanted` blocks are to be evicted now.
        """
        while (retained := self._top(self._retained)) and retained[0] <= self._retention.now:
            self.add(heappop(self._retained)[-1])
        entry = self._top(self.heap) or retained
        return None if entry is None else (entry[-1], wanted)

    spare = choose  # `VictimQueue` overrides `spare` and spares owners below their floors

    def own(self, owner: str) -> Node | None:  # noqa: ARG002 - without quotas there are no ceilings
        """Return the leaf to evict when `owner` is over its ceiling, or None without quotas."""
        return None

    def admits(self, node: Node, victim: Node) -> bool:
        return self._retention.may_displace(node, victim, self._policy.admits)

    def outdated(self) -> list[Node]:
        """Return the nodes whose sort key has changed since they were added. Used by checks."""
        sort_key = self._policy.sort_key
        plain = [(key, sort_key(node), node) for *key, _, node in self._counted(self.heap)]
        retained = [
            (key, (node.retained_until, *sort_key(node)), node)
            for *key, _, node in self._counted(self._retained)
        ]
        return [node for was, key, node in (*plain, *retained) if tuple(was) != key]

    def num_unreachable(self) -> int:
        """Count the candidates that would never reach the heap's top. Used by checks."""
        return len(self._entries) - len(self._counted(self.heap) + self._counted(self._retained))

    def _top(self, heap: list[Entry]) -> Entry | None:
        while heap:
            if self._counts(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def _swept(self, heap: list[Entry]) -> list[Entry]:
        counted = self._counted(heap)
        heapify(counted)
        return counted

    def _counted(self, heap: list[Entry]) -> list[Entry]:
        return [entry for entry in heap if self._counts(entry)]

    def _counts(self, entry: Entry) -> bool:
        return self._entries.get(entry[-1]) is entry


class RedundantCopies:
    """The redundant copies in a tier, which are evicted first.

    A copy is redundant if a faster tier has the same block.

    The queue holds nodes. `choose` finds out which of a node's blocks are redundant.
    """

    def __init__(self, tier: Tier) -> None:
        self._is_double = _IS_DOUBLE[tier]
        self._by_owner: dict[str, dict[Node, None]] = {}
        self._is_apart = False

    def __contains__(self, node: Node) -> bool:
        return node in self._by_owner.get(self._key(node.owner), ())

    def add(self, node: Node) -> None:
        """Add a node at the end of the queue, unless it is present."""
        self._by_owner.setdefault(self._key(node.owner), {})[node] = None

    def discard(self, node: Node) -> None:
        """Remove a node if it is present. The node's owner must be the same as at `add`."""
        key = self._key(node.owner)
        noted = self._by_owner.get(key)
        if noted is not None:
            noted.pop(node, None)
            if not noted:
                del self._by_owner[key]

    def choose(self, wanted: int, owner: str = "") -> tuple[Node, Places] | None:
        """Return a node and the indices of up to `wanted` of its redundant blocks.

        Nodes that were added first come first. Where owners are set apart, only a node of `owner`
        is chosen. An empty name means any owner.
        """
        while (node := self._first(owner)) is not None:
            redundant = node.edge.translated(self._is_double)
            found = redundant.count(1)
            if found <= wanted:
                self.discard(node)
            if found:
                return node, np.frombuffer(redundant, np.uint8).nonzero()[0][-wanted:]
        return None

    def set_apart(self) -> None:
        """Use a separate queue for each owner from now on."""
        nodes = [node for noted in self._by_owner.values() for node in noted]
        self._is_apart, self._by_owner = True, {}
        for node in nodes:
            self.add(node)

    def _first(self, owner: str) -> Node | None:
        if owner or not self._is_apart:
            return next(iter(self._by_owner.get(self._key(owner), ())), None)
        return next((node for noted in self._by_owner.values() for node in noted), None)

    def _key(self, owner: str) -> str:
        return owner if self._is_apart else ""
