"""Edges keep their blocks and keys when they are split, trimmed or appended to."""

from __future__ import annotations

import numpy as np
import pytest

from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.tree.edge import Edge, common_prefix
from prefix_cache.tree.residency import Change
from storage.move import Tier
from tests.prefix_cache.support.scene import tokens


def edge(first: int, blocks: int) -> Edge:
    """Make an edge of blocks first, first + 1, ... with tokens 2 * block, 2 * block + 1."""
    numbers = range(first, first + blocks)
    keys = b"".join(bytes([number]) * KEY_BYTES for number in numbers)
    ids = np.arange(2 * first, 2 * (first + blocks), dtype=np.int32)
    return Edge(ids, tokens(*numbers), keys, block_size=2)


def same(left: Edge, right: Edge) -> bool:
    return (left.tokens.tolist(), left.block_ids.tolist(), left.keys) == (
        right.tokens.tolist(),
        right.block_ids.tolist(),
        right.keys,
    )


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [
        ((), (), 0),
        ((1,), (), 0),
        ((1, 2), (1, 2), 2),
        ((1, 2, 3), (1, 2), 2),
        ((1, 2, 3), (1, 9, 3), 1),
        ((9, 2), (1, 2), 0),
    ],
)
def test_common_prefix(left: tuple[int, ...], right: tuple[int, ...], length: int) -> None:
    assert common_prefix(tokens(*left), tokens(*right)) == length
    assert common_prefix(tokens(*right), tokens(*left)) == length


def in_bytes(ids: TokenIds) -> memoryview:
    return ids.data.cast("B")


def test_only_whole_blocks_are_common() -> None:
    run = edge(0, 4)  # tokens 0 to 7
    assert run.common_blocks(in_bytes(tokens(0, 1, 2))) == 1
    assert run.common_blocks(in_bytes(tokens(0, 1, 2, 3, 4, 9))) == 2
    assert run.common_blocks(in_bytes(tokens(9, 1))) == 0
    assert run.common_blocks(in_bytes(np.arange(8, dtype=np.int32))) == 4
    assert run.common_blocks(in_bytes(np.arange(20, dtype=np.int32))) == 4


def test_a_part_of_other_tokens_is_compared_where_it_begins() -> None:
    run, data = edge(0, 4), in_bytes(tokens(9, 9, *range(8), 8))
    assert run.common_blocks(data[8:44]) == 4
    assert run.common_blocks(data[8:36]) == 3
    assert run.common_blocks(data) == 0


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_split_and_append_undo_each_other(at: int) -> None:
    run = edge(0, 5)
    head = run.split(at)
    assert same(head, edge(0, at))
    assert same(run, edge(at, 5 - at))
    head.append(run)
    assert same(head, edge(0, 5))


def test_trimming_drops_the_last_blocks() -> None:
    run = edge(0, 5)
    run.trim(2)
    assert same(run, edge(0, 3))
    assert run.last_key == bytes([2]) * KEY_BYTES
    run.append(edge(3, 1))
    assert same(run, edge(0, 4))


def test_growing_block_by_block_copies_seldom() -> None:
    run, buffers = edge(0, 1), set()
    for block in range(1, 200):
        run.append(edge(block, 1))
        buffers.add(run.block_ids.__array_interface__["data"][0])
    assert same(run, edge(0, 200))
    assert len(buffers) < 20


def test_an_edge_owns_its_arrays() -> None:
    ids, blocks = tokens(1, 2, 3, 4), tokens(7, 8)
    run = Edge(ids, blocks, bytes(32), block_size=2)
    ids[:], blocks[:] = 0, 0
    assert run.tokens.tolist() == [1, 2, 3, 4]
    assert run.block_ids.tolist() == [7, 8]
    assert run.block(1).tolist() == [3, 4]


def test_slots_that_are_held_are_told_by_tier() -> None:
    run = edge(0, 4)
    assert {tier: slots.tolist() for tier, slots in run.held_slots()} == {Tier.DEVICE: [0, 1, 2, 3]}
    assert run.begin(2, (Tier.DEVICE, Tier.HOST), tokens(8, 9)) == [2, 3]
    held = {tier: slots.tolist() for tier, slots in run.held_slots(1)}
    assert held == {Tier.DEVICE: [1, 2, 3], Tier.HOST: [8, 9]}
    run.change(slice(2, 4), Change.LAND, Tier.HOST)
    run.change(slice(2, 4), Change.FORGET, Tier.DEVICE)
    assert {tier: slots.tolist() for tier, slots in run.held_slots(2)} == {Tier.HOST: [8, 9]}
    assert run.held_slots_in(Tier.DEVICE).tolist() == [0, 1]
    assert run.held_slots_in(Tier.DISK).tolist() == []
    assert run.held_slots(4) == []


def test_trim_returns_the_keys_of_the_trimmed_blocks() -> None:
    run = edge(0, 3)
    assert run.trim(2) == bytes([1]) * KEY_BYTES + bytes([2]) * KEY_BYTES
