"""The copies that may be evicted, compared with a plain version of the rule, block by block."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefix_cache.hashing import KEY_BYTES
from prefix_cache.namespace import Namespace
from prefix_cache.tiers.removals import last_run
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Node
from prefix_cache.tree.residency import DEVICE, DISK, HOST, IN_FLIGHT, Change
from storage.move import Tier

ON_DEVICE = (DEVICE, DEVICE | HOST, DEVICE | DISK, DEVICE | HOST | DISK, DEVICE | IN_FLIGHT * HOST)
IN_HOST = (HOST, HOST | DISK, HOST | IN_FLIGHT * DISK)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Draw a node whose blocks are in ever lower tiers, in any legal states."""
    parts = [draw(st.lists(st.sampled_from(some), max_size=4)) for some in (ON_DEVICE, IN_HOST)]
    states = [*parts[0], *parts[1], *[DISK] * draw(st.integers(0, 2))] or [DEVICE]
    slots = np.arange(len(states), dtype=np.int32)
    edge = Edge(slots, slots, bytes(len(states) * KEY_BYTES), 1)
    edge.states[:] = states
    edge.recount()
    node = Node(Namespace(b"n" * 16), edge, "owner", 0, None, 0.0)
    node.upper_children = draw(st.integers(0, 1))
    return node


def may_stay_alone(node: Node, tier: Tier, place: int) -> bool:
    """Return whether the tree stays legal if the block's copy in `tier` is evicted."""
    state = int(node.edge.states[place])
    if tier is Tier.HOST:
        return bool(state & DISK)
    behind = node.edge.states[place + 1 :]
    host_behind = node.upper_children or bool((behind & HOST != 0).any())
    return bool(state & HOST) or (bool(state & DISK) and not host_behind)


@given(nodes(), st.sampled_from((Tier.DEVICE, Tier.HOST)), st.integers(1, 6))
def test_the_last_run_of_blocks_that_are_alike(node: Node, tier: Tier, wanted: int) -> None:
    start, end = node.edge.run_in(tier)
    if start == end:
        return
    flags = [may_stay_alone(node, tier, at) for at in range(max(start, end - wanted), end)]
    alike = len(flags)
    while alike and flags[alike - 1] == flags[-1]:
        alike -= 1
    assert last_run(tier, node, wanted) == (flags[-1], end - len(flags) + alike, end)


def test_a_block_in_front_of_one_in_the_host_may_not_lie_on_disk_alone() -> None:
    slots = np.arange(2, dtype=np.int32)
    edge = Edge(slots, slots, bytes(2 * KEY_BYTES), 1)
    for tier in (Tier.HOST, Tier.DISK):
        edge.change(slice(1, 2) if tier is Tier.HOST else slice(0, 1), Change.BEGIN, tier)
        edge.change(slice(1, 2) if tier is Tier.HOST else slice(0, 1), Change.LAND, tier)
    node = Node(Namespace(b"n" * 16), edge, "owner", 0, None, 0.0)
    assert last_run(Tier.DEVICE, node, 2) == (True, 1, 2)  # only the block with a copy in the host
    edge.change(slice(1, 2), Change.FORGET, Tier.DEVICE)
    # the other block would then be only on the disk
    assert last_run(Tier.DEVICE, node, 2) == (False, 0, 1)
