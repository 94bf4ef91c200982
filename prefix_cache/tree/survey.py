"""A survey of the whole tree, a few nodes at a time, so that no request waits.

    begin -> advance, advance, ... -> `last`, until the next survey

A survey looks at each node once. The tree changes meanwhile, so the sums describe no single moment.
Each list has at most LISTED nodes.

    hot       most hit tokens: requests that found the node, times the node's present tokens
    wasteful  most blocks for each use: the node's blocks, divided by 1 + requests that found it

Both parts of a split node keep the node's number of requests, since the requests found both.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from prefix_cache.namespace import Namespace
from prefix_cache.tree.node import Node
from prefix_cache.tree.tree import RadixTree

LISTED = 200
NAMESPACES = 4096  # maximum number of namespaces counted separately


@dataclass(slots=True)
class NamespaceUse:
    """The blocks in one namespace, by their fastest tier."""

    device: int = 0
    host: int = 0
    disk: int = 0
    hits: int = 0
    last_used: float = 0.0

    @property
    def blocks(self) -> int:
        """The number of blocks in all tiers."""
        return self.device + self.host + self.disk


def hit_blocks(node: Node) -> int:
    """Return the score of a hot node: its blocks times the requests that found it."""
    return node.hits * node.edge.num_blocks


def waste(node: Node) -> float:
    """Return the node's blocks per use. The request that computed the blocks counts as a use."""
    return node.edge.num_blocks / (1 + node.hits)


class Largest:
    """The nodes with the highest score among all offered nodes."""

    def __init__(self, score: Callable[[Node], float]) -> None:
        self._score = score
        self._heap: list[tuple[float, int, Node]] = []
        self._numbers = itertools.count()

    def add(self, node: Node) -> None:
        """Offer a node."""
        score = self._score(node)
        if len(self._heap) < LISTED:
            heapq.heappush(self._heap, (score, next(self._numbers), node))
        elif score > self._heap[0][0]:
            heapq.heapreplace(self._heap, (score, next(self._numbers), node))

    def listed(self) -> list[Node]:
        """List the offered nodes that are still in the tree, by their present scores."""
        return sorted((n for _, _, n in self._heap if n.attached), key=self._score, reverse=True)


@dataclass(slots=True)
class Surveyed:
    """The counts of one survey so far."""

    nodes: int = 0
    depth: int = 0
    hot: Largest = field(default_factory=lambda: Largest(hit_blocks))
    wasteful: Largest = field(default_factory=lambda: Largest(waste))
    namespaces: dict[Namespace, NamespaceUse] = field(default_factory=dict)
    # number of blocks that are retained, in any tier, by owner
    retained: Counter[str] = field(default_factory=Counter)

    def add(self, node: Node, depth: int, now: float) -> None:
        """Count a node that is `depth` nodes from the root."""
        self.nodes += 1
        if depth > self.depth:
            self.depth = depth
        if node.hits:
            self.hot.add(node)
        self.wasteful.add(node)
        if node.retained_until > now:
            self.retained[node.owner] += node.edge.num_blocks
        use = self.namespaces.get(node.namespace)
        if use is None:
            if len(self.namespaces) >= NAMESPACES:
                return
            use = self.namespaces[node.namespace] = NamespaceUse()
        edge = node.edge
        use.device += edge.num_device
        use.host += edge.num_upper - edge.num_device
        use.disk += edge.num_blocks - edge.num_upper
        if node.parent is not None and node.parent.namespace != node.namespace:
            use.hits += node.hits
        if node.last_used > use.last_used:
            use.last_used = node.last_used


@dataclass(slots=True)
class _Level:
    nodes: list[Node]
    done: int = 0


class Survey:
    """Surveys of one tree, taken one after another by the thread that owns the tree."""

    def __init__(self, tree: RadixTree) -> None:
        self.last: Surveyed | None = None
        self.began = float("-inf")  # start of the last survey, by its caller's clock
        self._tree = tree
        self._under_way = Surveyed()
        self._way: list[_Level] = []  # the levels from the root to the current node

    @property
    def is_under_way(self) -> bool:
        """True if a survey has started and not ended."""
        return bool(self._way)

    @property
    def known(self) -> Surveyed:
        """The last complete survey, or the first survey's counts so far."""
        return self._under_way if self.last is None else self.last

    def begin(self, now: float) -> None:
        """Start a survey unless a survey is under way."""
        if not self._way:
            self.began = now
            self._under_way = Surveyed()
            self._way = [_Level(list(self._tree.root.children.values()))]

    def advance(self, count: int) -> None:
        """Survey `count` more nodes, if a survey is under way."""
        way, surveyed = self._way, self._under_way
        if not way:
            return
        while way and count > 0:
            level = way[-1]
            if level.done == len(level.nodes):
                way.pop()
                continue
            node = level.nodes[level.done]
            level.done += 1
            count -= 1
            if node.attached:
                surveyed.add(node, len(way), self.began)
                if node.children:
                    way.append(_Level(list(node.children.values())))
        if not way:
            self.last = surveyed
