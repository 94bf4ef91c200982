"""A tier's free list gives out no slot twice. Freeing a slot twice raises an error."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from prefix_cache.errors import InvariantBroken
from prefix_cache.tiers.tier_pools import BlockAllocator
from tests.prefix_cache.support.scene import tokens


def test_fresh_ids_come_in_order() -> None:
    allocator = BlockAllocator(8)
    assert allocator.allocate(3).tolist() == [0, 1, 2]
    assert allocator.allocate(0).tolist() == []
    assert allocator.allocate(2).tolist() == [3, 4]
    assert allocator.num_free == 3


def test_the_ids_freed_last_are_allocated_first() -> None:
    allocator = BlockAllocator(8)
    ids = allocator.allocate(6)
    allocator.free(ids[1:3])
    assert allocator.allocate(3).tolist() == [1, 2, 6]


def test_more_than_is_free_is_a_bug_and_changes_nothing() -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(3)
    with pytest.raises(InvariantBroken, match="2 blocks asked for, 1 free"):
        allocator.allocate(2)
    assert allocator.allocate(1).tolist() == [3]


def test_freeing_twice_is_a_bug_and_changes_nothing() -> None:
    allocator = BlockAllocator(4)
    ids = allocator.allocate(3)
    allocator.free(ids[:1])
    with pytest.raises(InvariantBroken, match="freed twice"):
        allocator.free(ids[:2])
    assert allocator.num_free == 2
    allocator.free(ids[1:])
    assert allocator.num_free == 4


def test_more_than_there_are_cannot_be_freed() -> None:
    allocator = BlockAllocator(2)
    taken = allocator.allocate(1)
    with pytest.raises(InvariantBroken, match="freed twice"):
        allocator.free(np.concatenate([taken, taken]))
    allocator.free(taken)
    assert sorted(allocator.free_ids().tolist()) == [0, 1]


def test_reserved_ids_are_taken_and_reserving_them_again_raises() -> None:
    allocator = BlockAllocator(6)
    allocator.reserve(tokens(4, 1))
    assert allocator.num_free == 4
    with pytest.raises(InvariantBroken, match="taken twice"):
        allocator.reserve(tokens(0, 4))
    assert allocator.num_free == 4
    assert allocator.allocate(4).tolist() == [0, 2, 3, 5]


def test_no_id_is_ever_in_two_hands() -> None:
    random, allocator = Random(3), BlockAllocator(50)
    hands: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    for _ in range(2000):
        if random.random() < 0.5 and allocator.num_free:
            hands.append(allocator.allocate(random.randint(1, allocator.num_free)))
        elif hands:
            allocator.free(hands.pop(random.randrange(len(hands))))
        everywhere = np.concatenate([allocator.free_ids(), *hands])
        assert sorted(everywhere.tolist()) == list(range(50))
    assert tokens(*range(3)).dtype == allocator.free_ids().dtype
