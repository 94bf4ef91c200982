"""The tails of the prefixes unused for longest are evicted first. A refusal changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.eviction_policy import EvictionPolicy, SortKey
from prefix_cache.eviction.quota_usage import OwnerUse
from prefix_cache.tiers.capacity import PoolUse
from prefix_cache.tree.node import Node
from tests.prefix_cache.support.scene import Scene, path, tokens

A, B = path("tenant a"), path("tenant b")
IDS = np.arange(100, 120, dtype=np.int32)  # five blocks of four tokens


def prompt(first: int, length: int = 8) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Make a prompt that shares no prefix with prompts of another `first`."""
    return np.arange(first, first + length, dtype=np.int32)


def state(scene: Scene) -> tuple[object, ...]:
    cache = scene.cache
    cache.check_invariants()
    return (cache.capacity.pool(), cache.capacity.owners(), cache.tree.num_nodes, cache.tree.depth)


def test_the_pool_adds_up() -> None:
    scene = Scene(16)
    scene.run(A, IDS)
    lease = scene.must_acquire(A, IDS[:10])
    assert scene.cache.capacity.pool() == PoolUse(total=16, free=10, used=6, evictable=3, leased=3)
    scene.release(lease)
    assert scene.cache.capacity.pool() == PoolUse(total=16, free=11, used=5, evictable=5, leased=0)


def test_the_prefix_unused_for_longest_goes_first() -> None:
    scene = Scene(6)
    for first in (0, 1000, 2000):
        scene.run(A, prompt(first))
    scene.run(A, prompt(0))  # uses the prompt again
    scene.release(scene.must_acquire(A, prompt(3000)))
    left = [scene.matches(A, prompt(first)) for first in (0, 1000, 2000)]
    assert left == [8, 0, 8]


def test_only_as_many_blocks_go_as_are_needed_and_from_the_tail() -> None:
    scene = Scene(6)
    scene.run(A, IDS)
    scene.release(scene.must_acquire(B, prompt(0, 12)))
    assert scene.matches(A, IDS) == 12
    scene.cache.check_invariants()


def test_a_parent_goes_after_its_last_child() -> None:
    scene = Scene(8)
    scene.run(A, tokens(*IDS[:8], 1, 1, 1, 1))
    scene.run(A, tokens(*IDS[:8], 2, 2, 2, 2))
    assert scene.cache.tree.num_nodes == 3
    scene.release(scene.must_acquire(B, prompt(0, 24)))
    assert scene.matches(A, IDS) == 8
    scene.release(scene.must_acquire(B, prompt(0, 32)))
    assert scene.matches(A, IDS) == 0
    assert scene.cache.tree.num_nodes == 0
    scene.cache.check_invariants()


def test_leased_blocks_are_not_evicted() -> None:
    scene = Scene(6)
    lease = scene.start(A, IDS[:16])
    assert scene.acquire(B, prompt(0, 12)) is None
    assert scene.acquire(B, prompt(0, 8)) is not None
    assert scene.read(lease, 16) == scene.kv(A, IDS[:16])


def test_a_refused_acquire_changes_nothing() -> None:
    scene = Scene(8)
    scene.run(A, IDS)
    scene.start(B, prompt(0, 8))
    before = state(scene)
    # would need a split, a copy and an eviction
    assert scene.acquire(A, tokens(*IDS[:6], *range(30))) is None
    assert state(scene) == before
    assert scene.acquire(A, tokens(*IDS[:6], *range(18))) is not None


def test_a_refused_extend_changes_nothing() -> None:
    scene = Scene(8)
    scene.run(A, IDS[:8])
    lease = scene.start(B, prompt(0, 8))
    before, blocks = state(scene), lease.blocks.tolist()
    assert not scene.cache.extend(lease, 33, now=scene.tick())
    assert (state(scene), lease.blocks.tolist()) == (before, blocks)
    assert scene.cache.extend(lease, 32, now=scene.tick())
    assert lease.blocks[:2].tolist() == blocks
    assert scene.matches(A, IDS) == 0
    scene.cache.check_invariants()


def test_extending_within_the_last_block_takes_nothing() -> None:
    scene = Scene(2)
    lease = scene.must_acquire(A, IDS[:5])
    before = state(scene)
    assert scene.cache.extend(lease, 8, now=scene.tick())
    assert state(scene) == before
    assert not scene.cache.extend(lease, 9, now=scene.tick())


@pytest.mark.parametrize("num_blocks", range(1, 12))
def test_whichever_allocation_is_the_one_that_fails_nothing_is_lost(num_blocks: int) -> None:
    """Let each allocation fail in turn, for prompts and growth of five blocks or more: nothing is
    lost.
    """
    scene = Scene(num_blocks)
    leases = []
    for first in (0, 0, 1000):
        before = state(scene)
        lease = scene.acquire(A, prompt(first, 10))
        if lease is None:
            assert state(scene) == before
            continue
        scene.compute(lease, prompt(first, 10), lease.cached_tokens, 10)
        scene.commit(lease, prompt(first, 10))
        leases.append(lease)
        for total in range(11, 21):
            before = state(scene)
            if not scene.cache.extend(lease, total, now=scene.tick()):
                assert state(scene) == before
                break
            scene.cache.check_invariants()
    for lease in leases:
        scene.release(lease)
    scene.cache.flush()
    scene.cache.check_invariants()
    assert scene.cache.capacity.pool().free == num_blocks
    assert bool(leases) == (num_blocks >= 3)


def test_the_block_that_is_copied_is_not_evicted_for_its_copy() -> None:
    scene = Scene(5)
    scene.run(A, IDS[:8])  # the copy's source, which is least recently used
    scene.run(B, prompt(0, 12))
    ids = tokens(*IDS[:6], 1, 1)
    lease = scene.must_acquire(A, ids)
    assert lease.cached_tokens == 6
    scene.compute(lease, ids, 6, 8)
    assert scene.matches(A, IDS) == 8
    assert scene.matches(B, prompt(0, 12)) == 8


def test_where_only_the_source_could_give_way_it_is_not_copied_but_used() -> None:
    scene = Scene(5)
    scene.run(A, IDS)
    lease = scene.must_acquire(A, IDS)
    assert (lease.cached_tokens, lease.moves) == (16, ())
    scene.compute(lease, IDS, 16, 20)
    scene.commit(lease, IDS)
    assert scene.matches(A, IDS) == 20
    scene.cache.check_invariants()


def test_a_prompt_that_fits_is_always_admitted_when_nothing_is_leased() -> None:
    scene = Scene(7)
    for first in range(0, 60, 3):
        # `start` asserts that the request is admitted
        scene.release(scene.start(A, prompt(first % 9, 28)))
        assert scene.matches(A, prompt(first % 9, 28)) == 28
        scene.cache.check_invariants()


def test_evictions_are_booked_for_whom_and_whose() -> None:
    scene = Scene(6)
    scene.run(A, IDS[:16], owner="anna")
    scene.run(B, prompt(0, 8), owner="ben")
    lease = scene.must_acquire(B, prompt(500, 20), owner="cleo")
    assert scene.cache.capacity.owners() == {
        "anna": OwnerUse(blocks_held=0, evictions_caused=0, evictions_suffered=4),
        "ben": OwnerUse(blocks_held=1, evictions_caused=0, evictions_suffered=1),
        "cleo": OwnerUse(blocks_held=5, evictions_caused=5, evictions_suffered=0),
    }
    assert scene.cache.extend(lease, 21, now=scene.tick())
    assert scene.cache.capacity.owners()["ben"].evictions_suffered == 2
    assert scene.cache.capacity.owners()["cleo"].evictions_caused == 6


def test_evicting_ones_own_counts_on_both_sides() -> None:
    scene = Scene(4)
    scene.run(A, prompt(0, 16), owner="anna")
    scene.run(A, prompt(50, 16), owner="anna")
    assert scene.cache.capacity.owners() == {"anna": OwnerUse(4, 4, 4)}


def test_a_flush_is_no_eviction() -> None:
    scene = Scene(4)
    scene.run(A, prompt(0, 16), owner="anna")
    scene.cache.flush()
    assert scene.cache.capacity.owners() == {"anna": OwnerUse(0, 0, 0)}


class LongestFirst(EvictionPolicy):
    """A policy that evicts the longest node. Trimming or splitting a node changes its length."""

    def sort_key(self, node: Node) -> SortKey:
        return (-len(node.edge),)


def test_another_policy_chooses_otherwise() -> None:
    scene = Scene(8)
    scene.cache = PrefixCache(num_blocks=8, block_size=4, policy=LongestFirst())
    scene.run(A, prompt(0, 8))
    scene.run(A, IDS)
    scene.release(scene.must_acquire(B, prompt(500, 16)))
    assert (scene.matches(A, prompt(0, 8)), scene.matches(A, IDS)) == (8, 8)
    # splits a node that is a candidate for eviction
    assert scene.acquire(A, tokens(*IDS[:4], 9)) is not None
    scene.cache.check_invariants()
