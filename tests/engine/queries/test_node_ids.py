from __future__ import annotations

import gc

import pytest

from engine.queries import node_ids
from engine.queries.node_ids import NodeIds
from prefix_cache.namespace import Namespace
from tests.prefix_cache.tree.test_survey import Grove

NAMESPACE = Namespace(b"n" * 16)


def test_a_name_is_kept_and_finds_what_it_names() -> None:
    ids, grove = NodeIds("engine-one"), Grove()
    node, other = grove.add(1), grove.add(1)
    assert ids.of_node(node) == ids.of_node(node) != ids.of_node(other)
    assert ids.named(ids.of_node(node)) is node
    assert ids.named(ids.of_namespace(NAMESPACE)) == NAMESPACE
    assert ids.named("engine-o-99") is None


def test_names_are_counted_and_say_nothing_of_contents() -> None:
    ids, grove = NodeIds("abcdefghij"), Grove()
    assert [ids.of_node(grove.add(1)) for _ in range(2)] == ["abcdefgh-1", "abcdefgh-2"]


def test_what_left_the_tree_has_no_name_and_is_not_kept_alive() -> None:
    ids, grove = NodeIds("e"), Grove()
    node = grove.add(1)
    name = ids.of_node(node)
    node.attached = False
    assert ids.named(name) is None
    node.attached = True
    assert ids.named(name) is node
    grove.tree.unlink(node)
    grove.tree.left(node)
    del node
    gc.collect()
    assert ids.named(name) is None


def test_old_names_are_forgotten_and_given_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_ids, "MOST", 2)
    ids, grove = NodeIds("e"), Grove()
    nodes = [grove.add(1) for _ in range(2)]
    first = ids.of_node(nodes[0])
    ids.of_namespace(NAMESPACE)
    ids.of_node(nodes[1])
    assert ids.named(first) is None
    assert ids.of_node(nodes[0]) != first
    assert ids.named(ids.of_namespace(NAMESPACE)) == NAMESPACE
