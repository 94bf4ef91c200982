"""A lease gets cached blocks first and then free blocks. A refused lease changes nothing."""

from __future__ import annotations

import numpy as np

from prefix_cache.eviction.shares import PUBLISHED, Quota
from prefix_cache.hashing import TokenIds
from tests.prefix_cache.support.scene import Scene, path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

A, B = path("a"), path("b")
IDS = np.arange(100, 112, dtype=np.int32)  # three blocks of four tokens


def prompt(first: int, length: int) -> TokenIds:
    return np.arange(first, first + length, dtype=np.int32)


def state(scene: Scene) -> tuple[object, ...]:
    scene.cache.check_invariants()
    cache = scene.cache
    return (
        cache.capacity.pool(),
        cache.capacity.owners(),
        cache.tree.num_nodes,
        cache.tree.depth,
        len(cache.in_flight),
    )


def test_a_lease_has_found_blocks_first_and_fresh_ones_after_them() -> None:
    scene = Scene(16)
    first = scene.start(A, IDS)
    longer = np.append(IDS, prompt(500, 5))
    lease = scene.must_acquire(A, longer)
    assert lease.cached_tokens == 12
    assert lease.blocks[:3].tolist() == first.blocks[:3].tolist()
    assert not set(lease.blocks[3:].tolist()) & set(first.blocks.tolist())
    assert len(lease.blocks) == 5


def test_the_last_token_is_never_found() -> None:
    scene = Scene(16)
    scene.run(A, IDS)
    # includes three cached tokens of the last block, which is copied
    assert scene.must_acquire(A, IDS).cached_tokens == 11
    assert scene.must_acquire(A, IDS[:9]).cached_tokens == 8


def test_a_part_of_a_block_is_copied_and_the_rest_is_the_leases_own() -> None:
    scene = Scene(16)
    scene.run(A, IDS)
    other = np.concatenate([IDS[:10], prompt(500, 6)])
    lease = scene.must_acquire(A, other)
    assert lease.cached_tokens == 10
    assert [move.target for move in lease.moves] == [lease.blocks[2]]
    scene.compute(lease, other, 10, 16)
    assert scene.read(lease, 16) == scene.kv(A, other)
    reader = scene.must_acquire(A, IDS)
    scene.move()
    assert scene.read(reader, 11) == scene.kv(A, IDS)[:11], "what was copied from is as it was"
    assert scene.must_acquire(B, other).cached_tokens == 0, "the control: another's is not copied"


def test_not_now_changes_nothing_and_room_makes_it_now() -> None:
    scene = Scene(6)
    scene.run(A, IDS)
    held = scene.must_acquire(B, prompt(0, 12))
    before = state(scene)
    wanted = np.append(IDS, prompt(500, 8))
    assert scene.acquire(A, wanted) is None
    assert state(scene) == before
    assert scene.matches(A, IDS) == 12
    scene.release(held)
    assert scene.must_acquire(A, wanted).cached_tokens == 12


def test_a_lease_given_back_leaves_what_was_committed_and_frees_the_rest() -> None:
    scene = Scene(8)
    lease = scene.must_acquire(A, IDS)
    scene.compute(lease, IDS, 0, 8)
    scene.commit(lease, IDS, 8)
    scene.release(lease)
    assert (scene.cache.capacity.pool().used, scene.cache.capacity.pool().leased) == (2, 0)
    assert scene.matches(A, IDS) == 8


def test_a_longer_lease_takes_others_idle_blocks_and_never_held_ones() -> None:
    scene = Scene(5)
    scene.run(B, prompt(0, 8))
    lease = scene.must_acquire(A, IDS)
    assert scene.cache.extend(lease, 20, now=scene.tick())
    assert len(lease.blocks) == 5
    assert scene.matches(B, prompt(0, 8)) == 0
    scene.release(lease)
    reader = scene.start(B, prompt(0, 8))
    lease = scene.must_acquire(A, IDS)
    before = state(scene)
    assert not scene.cache.extend(lease, 20, now=scene.tick())
    assert state(scene) == before
    assert scene.read(reader, 8) == scene.kv(B, prompt(0, 8))


def test_a_pin_is_of_blocks_that_are_all_on_the_device() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, IDS[:9])
    assert scene.cache.pin(A, IDS, owner=PUBLISHED, now=scene.tick()) is None, "one is missing"
    pinned = scene.cache.pin(A, IDS[:8], owner=PUBLISHED, now=scene.tick())
    assert pinned is not None
    assert len(pinned.blocks) == 2
    assert scene.acquire(B, tokens(*range(9))) is None, "nobody evicts it"
    scene.release(pinned)
    assert scene.acquire_loading(B, tokens(*range(9)), None) is None
    scene.end_copies()
    assert scene.cache.tree.match(A, IDS[:8]).found.host == 2
    assert scene.cache.pin(A, IDS[:8], owner=PUBLISHED, now=scene.tick()) is None, "it lies lower"


def test_in_its_own_partition_a_lease_takes_nothing_of_anothers() -> None:
    scene = Scene(12)
    for divided in (False, True):
        if divided:
            halves = {"a": Quota(floor=0.5), "b": Quota(floor=0.5)}
            scene.cache.quotas.partition(halves)
        scene.cache.flush()
        scene.run(B, prompt(0, 20), "b")
        reader = scene.start(B, prompt(0, 4), "b")
        for first in (1000, 2000, 3000):
            scene.run(A, prompt(first, 20), "a")
        assert (scene.matches(B, prompt(0, 20)) == 20) is divided
        scene.release(reader)


def test_blocks_are_leased_to_be_read_and_stay_until_they_are_released() -> None:
    scene = Scene(6)
    scene.run(A, IDS)
    assert scene.cache.read(B, IDS, owner="me", now=scene.tick()) is None, "another's"
    lease = scene.cache.read(A, np.append(IDS, prompt(500, 4)), owner="me", now=scene.tick())
    assert lease is not None
    assert lease.num_blocks == lease.num_shared == 3, "what is there, and no private block"
    assert scene.acquire(B, prompt(0, 16)) is None, "they make no room"
    assert scene.read(lease, 12) == scene.kv(A, IDS)
    scene.release(lease)
    assert scene.cache.capacity.pool().leased == 0
    assert scene.acquire(B, prompt(0, 16)) is not None, "the control: now they do"
    scene.cache.check_invariants()


def test_a_lease_that_starts_later_copies_no_part_of_a_block() -> None:
    scene = Scene(16)
    scene.run(A, IDS)
    other = np.concatenate([IDS[:10], prompt(500, 6)])
    at_once, later = scene.must_acquire(A, other), scene.must_acquire(A, other)
    scene.move()
    assert (at_once.cached_tokens, len(at_once.moves)) == (10, 1), "the control"
    assert scene.cache.postpone(later) == later.cached_tokens == 8
    assert later.moves == ()
    scene.compute(later, other, 8, 16)
    assert scene.read(later, 16) == scene.kv(A, other)
