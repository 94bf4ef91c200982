"""The part of a prefix that a lease may use, compared with the rule applied block by block."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from prefix_cache.hashing import KEY_BYTES
from prefix_cache.namespace import Namespace
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.match import COMING, blocks_before_coming, reachable, to_load
from prefix_cache.tree.node import Position
from prefix_cache.tree.residency import DEVICE, DISK, HOST, IN_FLIGHT, MOVING
from prefix_cache.tree.tree import RadixTree

STILL = ((DEVICE, DEVICE | HOST), (HOST, HOST | DISK), (DISK,))
GOING = ((DEVICE | IN_FLIGHT * HOST,), (HOST | COMING, HOST | IN_FLIGHT * DISK), (DISK | COMING,))


def prefix(states: Sequence[int], cut: int) -> Position:
    """Return the end of a path through two nodes whose blocks have these states."""
    tree = RadixTree(1)
    parent = tree.root
    for run in (states[:cut], states[cut:]):
        if run:
            ids = np.arange(len(run), dtype=np.int32)
            edge = Edge(ids, ids, bytes(KEY_BYTES * len(run)), 1)
            edge.states[:] = run
            edge.recount()
            parent = tree.add(parent, Namespace(b"n"), edge, owner="o", now=0.0)
    return Position(parent, parent.edge.num_blocks, len(states))


def by_the_rule(states: Sequence[int], load_blocks: int | None) -> int:
    """Count leading blocks that are on the device or may be loaded, but load none after a gap."""
    loads = 0
    for count, state in enumerate(states):
        is_there = state & (DEVICE | COMING)
        if (is_there and loads) or (not is_there and state & MOVING):
            return count
        loads += not is_there
        if load_blocks is not None and loads > load_blocks:
            return count
    return len(states)


def random_states(random: Random, *, still: bool) -> list[int]:
    """Draw legal states: first the blocks on the device, last those only on the disk."""
    sorts = [STILL[n] if still else STILL[n] + GOING[n] for n in range(3)]
    return [random.choice(sort) for sort in sorts for _ in range(random.randrange(4))]


@pytest.mark.parametrize("still", [True, False])
def test_what_may_be_counted_on_is_what_the_rule_says(still: bool) -> None:
    random, limited, whole = Random(5), 0, 0
    for _ in range(500):
        states = random_states(random, still=still)
        if not states:
            continue
        at = prefix(states, random.randrange(len(states) + 1))
        limit = random.choice([None, 0, 1, 2, 5])
        expected = by_the_rule(states, limit)
        assert reachable(at, limit) == expected
        whole += expected == len(states)
        limited += limit is not None and expected < by_the_rule(states, None)
        there = [bool(state & (DEVICE | COMING)) for state in states]
        assert to_load(at) == there.count(False)
        coming = [n for n, state in enumerate(states) if state & COMING]
        assert blocks_before_coming(at) == (coming[0] if coming else len(states))
    assert limited > 30 < whole
