"""A hold protects its node and all nodes above from eviction, until the node's last hold ends.

root - top (2 blocks) - left (1 block)
                      - right (3 blocks)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from prefix_cache.eviction.eviction_policy import LeastRecentlyUsed
from prefix_cache.eviction.ref_counts import RefCounts
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Node, Position
from prefix_cache.tree.tree import RadixTree
from tests.prefix_cache.support.scene import namespace, path

BLOCK = 2
A = path("a")


class Grove:
    """A tree and leases in it, without free lists or owners' accounts."""

    def __init__(self) -> None:
        self.tree = RadixTree(BLOCK)
        self.ref_counts = RefCounts(self.tree, LeastRecentlyUsed())
        self.top = self.grow(self.tree.root, [1, 1, 2, 2], 1.0)
        self.left = self.grow(self.top, [3, 3], 2.0)
        self.right = self.grow(self.top, [4, 4, 5, 5, 6, 6], 3.0)

    def grow(self, parent: Node, ids: list[int], now: float) -> Node:
        blocks = len(ids) // BLOCK
        slots = np.arange(10 * int(now), 10 * int(now) + blocks, dtype=np.int32)
        edge = Edge(np.array(ids, np.int32), slots, bytes(range(16)) * blocks, BLOCK)
        node = self.tree.add(parent, namespace("a"), edge, owner="me", now=now)
        self.ref_counts.entered(node)
        self.ref_counts.offer(node)
        self.ref_counts.offer(parent)
        return node

    def find(self, *ids: int) -> Position:
        return self.tree.walk(A, np.array(ids, np.int32))

    def candidates(self) -> set[Node]:
        return set(self.ref_counts.candidates)


@pytest.fixture
def grove() -> Grove:
    return Grove()


def test_unheld_leaves_are_candidates_and_everything_is_evictable(grove: Grove) -> None:
    assert grove.candidates() == {grove.left, grove.right}
    assert grove.ref_counts.evictable_blocks == 6


def test_a_hold_keeps_all_on_the_way_and_spares_the_neighbour(grove: Grove) -> None:
    grove.ref_counts.inc_ref(grove.left)
    assert grove.candidates() == {grove.right}
    assert grove.ref_counts.evictable_blocks == 3
    assert grove.ref_counts.dec_ref(grove.left) == []
    assert grove.candidates() == {grove.left, grove.right}
    assert grove.ref_counts.evictable_blocks == 6


def test_a_node_is_held_until_its_last_hold_ends(grove: Grove) -> None:
    for node in (grove.left, grove.left, grove.top):
        grove.ref_counts.inc_ref(node)
    left = [6 - 3]
    for node in (grove.left, grove.left, grove.top):
        grove.ref_counts.dec_ref(node)
        left.append(grove.ref_counts.evictable_blocks)
    assert left == [3, 3, 4, 6]


@pytest.mark.parametrize("ids", [[1, 1], [1, 1, 2, 2], [1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 4, 4]])
@pytest.mark.parametrize("held", [False, True])
def test_what_a_hold_costs_is_what_it_takes(grove: Grove, ids: list[int], held: bool) -> None:
    if held:
        grove.ref_counts.inc_ref(grove.right)
    before, at = grove.ref_counts.evictable_blocks, grove.find(*ids)
    cost = grove.ref_counts.cost(at)
    grove.ref_counts.inc_ref(grove.ref_counts.split_at(at))
    assert before - grove.ref_counts.evictable_blocks == cost
    assert (cost == 0) == (held and ids != [1, 1, 2, 2, 3, 3])


def test_a_split_keeps_who_is_held(grove: Grove) -> None:
    grove.ref_counts.inc_ref(grove.right)
    upper = grove.ref_counts.split_at(grove.find(1, 1, 2, 2, 4, 4))
    assert (len(upper.edge), len(grove.right.edge)) == (1, 2)
    assert upper.is_held
    assert grove.candidates() == {grove.left}
    grove.ref_counts.dec_ref(grove.right)
    assert grove.candidates() == {grove.left, grove.right}
    assert grove.ref_counts.evictable_blocks == 6


def test_a_parent_is_a_candidate_when_its_last_child_is_gone(grove: Grove) -> None:
    grove.ref_counts.trim(grove.left, 1)
    assert grove.candidates() == {grove.right}
    grove.ref_counts.trim(grove.right, 2)
    assert grove.candidates() == {grove.right}, "the control: a part of it is still there"
    grove.ref_counts.trim(grove.right, 1)
    assert grove.candidates() == {grove.top}
    assert grove.ref_counts.evictable_blocks == 2
    assert grove.tree.num_nodes == 1


def test_a_use_touches_all_on_the_way_and_a_find_counts(grove: Grove) -> None:
    grove.ref_counts.inc_ref(grove.left)
    grove.ref_counts.touch(grove.left, 7.0)
    assert used(grove.top, grove.left, grove.right) == [(7.0, 0), (7.0, 0), (3.0, 0)]
    grove.ref_counts.found(grove.left.way_up(), 8.0)
    assert used(grove.top, grove.left, grove.right) == [(8.0, 1), (8.0, 1), (3.0, 0)]


def used(*nodes: Node) -> Iterable[tuple[float, int]]:
    return [(node.last_used, node.hits) for node in nodes]


def test_a_detached_subtree_is_found_no_more_and_goes_when_nobody_holds_it(grove: Grove) -> None:
    grove.ref_counts.inc_ref(grove.right)
    forgotten, free = grove.ref_counts.detach(grove.top)
    assert (forgotten, free) == (6, [grove.left])
    assert grove.find(1, 1).num_blocks == 0
    assert grove.candidates() == set()
    assert grove.ref_counts.evictable_blocks == 0
    assert grove.ref_counts.dec_ref(grove.right) == [grove.right, grove.top]


def test_a_held_node_keeps_what_is_above_a_detached_one(grove: Grove) -> None:
    grove.ref_counts.inc_ref(grove.right)
    assert grove.ref_counts.detach(grove.right) == (3, [])
    assert grove.candidates() == {grove.left}
    grove.ref_counts.trim(grove.left, 1)
    assert grove.candidates() == set(), "whoever reads the detached one reads its parent too"
    grove.ref_counts.dec_ref(grove.right)
    assert grove.candidates() == {grove.top}
