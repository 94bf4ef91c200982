"""After every change a node has the right neighbours among its siblings, and is a tail in each tier
of its last blocks.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_cache.hashing import KEY_BYTES
from prefix_cache.namespace import Namespace
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Children, Node
from prefix_cache.tree.residency import Change
from storage.move import Tier


def node(blocks: int) -> Node:
    slots = np.arange(blocks, dtype=np.int32)
    edge = Edge(slots, slots, bytes(blocks * KEY_BYTES), 1)
    return Node(Namespace(b"n" * 16), edge, "owner", 0, None, 0.0)


KEYS = st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=12)


@given(KEYS, KEYS, st.binary(max_size=2), st.booleans())
def test_neighbours_are_right_after_every_change(
    put: list[bytes], removed: list[bytes], wanted: bytes, asked_before: bool
) -> None:
    children, here = Children(), {key: node(1) for key in put}
    # from now on the order is kept up to date, instead of computed at each request
    if asked_before and put:
        children.put(put[0], here[put[0]])
        children.neighbours(b"")
    for key in put:
        children.put(key, here[key])
    for key in removed:
        if here.pop(key, None) is not None:
            children.remove(key)
    below, above = [k for k in here if k < wanted], [k for k in here if k >= wanted]
    expected = [*sorted(below)[-1:], *sorted(above)[:1]]
    assert children.neighbours(wanted) == [here[key] for key in expected]
    assert children == here


def test_another_node_in_the_place_of_one_is_the_neighbour() -> None:
    children, upper = Children(), node(2)
    children.put(b"a", node(1))
    assert len(children.neighbours(b"a")) == 1
    children.put(b"a", upper)
    assert children.neighbours(b"a") == [upper]


@pytest.mark.parametrize("device_children", [0, 1])
def test_a_node_is_the_tail_of_the_tiers_its_last_blocks_lie_in(device_children: int) -> None:
    one = node(3)
    one.device_children = one.upper_children = device_children
    assert one.tails() == (() if device_children else (Tier.DEVICE,))


def test_a_node_of_blocks_in_several_tiers_is_a_tail_in_each() -> None:
    one = node(3)
    for tier, first in ((Tier.HOST, 1), (Tier.DISK, 2)):
        one.edge.change(slice(first, 3), Change.BEGIN, tier)
        one.edge.change(slice(first, 3), Change.LAND, tier)
    one.edge.change(slice(1, 3), Change.FORGET, Tier.DEVICE)
    one.edge.change(slice(2, 3), Change.FORGET, Tier.HOST)
    assert one.tails() == tuple(Tier)
    assert [one.edge.run_in(tier) for tier in Tier] == [(0, 1), (1, 2), (2, 3)]
