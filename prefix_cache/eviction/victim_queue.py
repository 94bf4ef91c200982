"""The evictable leaves of a tier with quotas: choose the owner first, then the leaf.

Each owner has a heap of leaves in the policy's order. The owners are sorted by `quota_usage`. An
owner whose counts have changed is sorted in again at the next lookup. A lookup takes time
logarithmic in the number of owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from sortedcontainers import SortedList

from prefix_cache.eviction.eviction_policy import Candidates, EvictionPolicy
from prefix_cache.eviction.quota_usage import Class, QuotaUsage, Rank
from prefix_cache.eviction.retention import Retention
from prefix_cache.tree.node import Node


class VictimQueue(Candidates):
    """The queue of victims that replaces a tier's `Candidates` once a quota is set."""

    def __init__(
        self,
        policy_of: Callable[[str], EvictionPolicy],
        quota_usage: QuotaUsage,
        nodes: Iterable[Node] = (),
        retention: Retention | None = None,
    ) -> None:
        """Order each owner's leaves. Without `retention`, no retention mark lapses."""
        self._retention = retention or Retention()
        self._policy_of = policy_of
        self._quota_usage = quota_usage
        self._leaves: dict[str, Candidates] = {}
        self._order: SortedList[Rank] = SortedList()
        self._places: dict[str, Rank] = {}
        for node in nodes:
            self.add(node)

    def __len__(self) -> int:
        return sum(len(leaves) for leaves in self._leaves.values())

    def __iter__(self) -> Iterator[Node]:
        return chain.from_iterable(self._leaves.values())

    def __contains__(self, node: Node) -> bool:
        return node.owner in self._leaves and node in self._leaves[node.owner]

    def add(self, node: Node) -> None:
        leaves = self._leaves.get(node.owner)
        if leaves is None:
            leaves = Candidates(self._policy_of(node.owner), self._retention)
            self._leaves[node.owner] = leaves
            self._quota_usage.moved.add(node.owner)
        leaves.add(node)

    def discard(self, node: Node) -> None:
        leaves = self._leaves.get(node.owner)
        if leaves is not None:
            leaves.discard(node)
            if not len(leaves):
                del self._leaves[node.owner]
                self._quota_usage.moved.add(node.owner)

    def choose(self, owner: str, wanted: int, more: int) -> tuple[Node, int] | None:
        return self._choose(owner, wanted, more, Class.BELOW)

    def spare(self, owner: str, wanted: int, more: int) -> tuple[Node, int] | None:
        """Choose a leaf like `choose`, but none of an owner below its floor."""
        return self._choose(owner, wanted, more, Class.OWN)

    def own(self, owner: str) -> Node | None:
        leaves = self._leaves.get(owner)
        return None if leaves is None else leaves.first()

    def admits(self, node: Node, victim: Node) -> bool:
        admits = self._policy_of(node.owner).admits
        is_apart = node.owner != victim.owner
        return is_apart or self._retention.may_displace(node, victim, admits)

    def outdated(self) -> list[Node]:
        return [node for leaves in self._leaves.values() for node in leaves.outdated()]

    def num_unreachable(self) -> int:
        self._place_anew()
        unplaced = len(self._leaves.keys() ^ self._places.keys())
        stale = [o for o, rank in self._places.items() if rank != self._quota_usage.rank(o)]
        return (
            unplaced
            + len(stale)
            + sum(leaves.num_unreachable() for leaves in self._leaves.values())
        )

    def _choose(self, owner: str, wanted: int, more: int, last: Class) -> tuple[Node, int] | None:
        self._place_anew()
        ranks = [rank for rank in self._order[:3] if rank.owner != owner]
        if owner in self._leaves:
            ranks = sorted([*ranks, self._quota_usage.rank(owner, more)])
        if not ranks or ranks[0].sort > last:
            return None
        first, then = ranks[0], ranks[1] if len(ranks) > 1 else None
        node = self._leaves[first.owner].first()
        if node is None:
            return None
        return node, min(wanted, self._quota_usage.allowance(first, then, more))

    def _place_anew(self) -> None:
        moved = self._quota_usage.moved
        while moved:
            owner = moved.pop()
            before = self._places.pop(owner, None)
            if before is not None:
                self._order.remove(before)
            if owner in self._leaves:
                self._places[owner] = rank = self._quota_usage.rank(owner)
                self._order.add(rank)
