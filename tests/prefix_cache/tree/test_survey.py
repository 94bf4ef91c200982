from __future__ import annotations

import numpy as np

from prefix_cache.namespace import Namespace
from prefix_cache.tree import survey as module
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Node
from prefix_cache.tree.survey import LISTED, Survey
from prefix_cache.tree.tree import RadixTree

ONE, OTHER = Namespace(b"1" * 16), Namespace(b"2" * 16)


class Grove:
    """A tree of one-token blocks."""

    def __init__(self) -> None:
        self.tree = RadixTree(1)
        self.survey = Survey(self.tree)
        self._next = 0

    def add(
        self, blocks: int, hits: int = 0, parent: Node | None = None, namespace: Namespace = ONE
    ) -> Node:
        ids = np.arange(self._next, self._next + blocks, dtype=np.int32)
        self._next += blocks
        edge = Edge(ids, ids, b"k" * 16 * blocks, 1)
        node = self.tree.add(parent or self.tree.root, namespace, edge, owner="me", now=1.0)
        node.hits = hits
        return node


def test_it_counts_everything_a_few_nodes_at_a_time() -> None:
    grove = Grove()
    top = grove.add(3, hits=4)
    grove.add(5, hits=2, parent=top)
    grove.add(7, parent=top, namespace=OTHER)
    survey = grove.survey
    survey.begin(9.0)
    survey.advance(2)
    assert survey.is_under_way
    assert (survey.last, survey.known.nodes) == (None, 2)
    survey.advance(2)
    assert not survey.is_under_way
    assert survey.last is survey.known
    assert (survey.known.nodes, survey.known.depth, survey.began) == (3, 2, 9.0)
    one, other = survey.known.namespaces[ONE], survey.known.namespaces[OTHER]
    assert (one.blocks, one.hits, other.blocks, other.hits) == (8, 4, 7, 0)


def test_hot_is_most_hit_tokens_and_wasteful_is_most_blocks_for_each_use() -> None:
    grove = Grove()
    large = grove.add(100)
    hot = grove.add(10, hits=50)
    warm = grove.add(90, hits=2)
    grove.survey.begin(0.0)
    grove.survey.advance(10)
    assert grove.survey.known.hot.listed() == [hot, warm]
    assert grove.survey.known.wasteful.listed() == [large, warm, hot]


def test_of_many_nodes_the_first_are_listed() -> None:
    grove = Grove()
    nodes = [grove.add(1, hits=n + 1) for n in range(LISTED + 50)]
    grove.survey.begin(0.0)
    grove.survey.advance(10_000)
    assert grove.survey.known.hot.listed() == nodes[:49:-1]


def test_nodes_that_have_left_are_not_listed() -> None:
    grove = Grove()
    gone, stays = grove.add(9, hits=9), grove.add(1, hits=1)
    grove.survey.begin(0.0)
    grove.survey.advance(1)
    gone.attached = False
    grove.survey.advance(10)
    assert grove.survey.known.hot.listed() == [stays]


def test_namespaces_are_counted_up_to_a_bound(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "NAMESPACES", 1)
    grove = Grove()
    grove.add(1)
    grove.add(1, namespace=OTHER)
    grove.survey.begin(0.0)
    grove.survey.advance(10)
    assert grove.survey.known.namespaces.keys() == {ONE}
    assert grove.survey.known.nodes == 2


def test_without_one_under_way_nothing_is_looked_at() -> None:
    grove = Grove()
    grove.add(1)
    grove.survey.advance(10)
    assert grove.survey.last is None
    grove.survey.begin(0.0)
    grove.survey.begin(5.0)  # a survey is already running
    assert grove.survey.began == 0.0
