"""The leaf unused for longest is evicted first; of equally old leaves, the deepest."""

from __future__ import annotations

from random import Random

import numpy as np

from prefix_cache.eviction.eviction_policy import (
    Candidates,
    EvictionPolicy,
    LeastRecentlyUsed,
    SortKey,
)
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Node
from tests.prefix_cache.support.scene import namespace


def leaf(last_used: float, blocks: int = 1) -> Node:
    ids = np.arange(blocks, dtype=np.int32)
    edge = Edge(np.zeros(2 * blocks, dtype=np.int32), ids, bytes(16 * blocks), 2)
    return Node(namespace("a"), edge, "me", start=0, parent=None, last_used=last_used)


class MostRecentlyUsed(EvictionPolicy):
    def sort_key(self, node: Node) -> SortKey:
        return (-node.last_used,)


def drain(candidates: Candidates) -> list[Node]:
    order = []
    while (node := candidates.first()) is not None:
        order.append(node)
        candidates.discard(node)
    return order


def test_the_leaf_unused_for_longest_comes_first() -> None:
    nodes = [leaf(5.0), leaf(2.0), leaf(9.0)]
    candidates = Candidates(LeastRecentlyUsed())
    for node in nodes:
        candidates.add(node)
    assert drain(candidates) == [nodes[1], nodes[0], nodes[2]]


def test_of_two_leaves_used_at_one_time_the_deeper_comes_first() -> None:
    shallow, deep = leaf(1.0, blocks=2), leaf(1.0, blocks=3)
    candidates = Candidates(LeastRecentlyUsed())
    candidates.add(shallow)
    candidates.add(deep)
    assert drain(candidates) == [deep, shallow]


def test_a_policy_is_any_object_with_a_sort_key() -> None:
    nodes = [leaf(5.0), leaf(2.0)]
    candidates = Candidates(MostRecentlyUsed())
    for node in nodes:
        candidates.add(node)
    assert drain(candidates) == nodes


def test_adding_again_places_anew() -> None:
    first, second = leaf(1.0), leaf(2.0)
    candidates = Candidates(LeastRecentlyUsed())
    candidates.add(first)
    candidates.add(second)
    first.last_used = 3.0
    assert candidates.outdated() == [first]
    candidates.add(first)
    assert candidates.outdated() == []
    assert len(candidates) == 2
    assert drain(candidates) == [second, first]


def test_discarding_what_is_not_there_is_nothing() -> None:
    candidates = Candidates(LeastRecentlyUsed())
    candidates.discard(leaf(1.0))
    assert candidates.first() is None


def test_random_adds_and_discards_keep_the_order_and_a_bounded_heap() -> None:
    random, candidates = Random(2), Candidates(LeastRecentlyUsed())
    here: set[Node] = set()
    nodes = [leaf(0.0) for _ in range(40)]
    for now in range(5000):
        node = random.choice(nodes)
        if random.random() < 0.3:
            candidates.discard(node)
            here.discard(node)
        else:
            node.last_used = now
            candidates.add(node)
            here.add(node)
        assert set(candidates) == here
        assert candidates.num_unreachable() == 0
        assert len(candidates.heap) <= 2 * 40 + 65
        first = candidates.first()
        assert first is min(here, key=lambda n: n.last_used, default=None)
