"""A restarted cache finds its valid records on disk. A cache that lost its disk forgets the blocks
that were only there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from prefix_cache.cache import PrefixCache
from prefix_cache.errors import RestoreError
from prefix_cache.eviction.eviction_policy import LeastRecentlyUsed, SortKey
from prefix_cache.tiers.eviction_log import Reason
from prefix_cache.tiers.in_flight import CopyOutcome
from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tree.node import Node
from storage.move import BlockRecord, Tier
from tests.prefix_cache.support.scene import ConstantDigest, path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

A = path("a")
LONG = tokens(*range(1, 18))  # four whole blocks
FORK = tokens(*range(1, 9), *range(81, 90))  # the first two blocks of LONG, and two others
THROUGH = path("pub", "group", "a")  # another namespace for each block


def saved(scene: TierScene) -> None:
    """Write everything to the disk."""
    while scene.cache.restart.save(100) or len(scene.cache.in_flight):
        scene.take_plan()
        scene.complete([(move, CopyOutcome.DONE) for move in scene.under_way])
        scene.cache.check_invariants()


def stopped(disk: int = 16) -> TierScene:
    """Make a scene that has written three prompts to the disk."""
    scene = TierScene(16, host=4, disk=disk)
    scene.run(A, LONG)
    scene.run(A, FORK)
    scene.run(THROUGH, LONG)
    saved(scene)
    return scene


def test_everything_comes_back_in_any_order() -> None:
    scene = stopped()
    found = list(scene.records.items())
    assert len(found) == 10
    for seed in range(10):
        Random(seed).shuffle(found)
        assert scene.restart(found) == 10
        scene.cache.check_invariants()
        scene.check_contents()
        assert [scene.cache.tree.match(A, ids).found.disk for ids in (LONG, FORK)] == [4, 4]
        assert scene.cache.tree.match(THROUGH, LONG).found.disk == 4
        assert scene.take_plan().erase == ()


def test_restored_blocks_are_loaded_with_the_right_content() -> None:
    scene = stopped()
    scene.restart()
    for where, ids in ((A, LONG), (A, FORK), (THROUGH, LONG)):
        lease = scene.acquire_loading(where, ids, None)
        assert lease is not None
        scene.copy_all()
        assert lease.ready
        assert lease.cached_tokens == 16
        assert scene.read(lease, 16) == scene.kv(where, ids)[:16]
        scene.release(lease)
    assert scene.matches(path("b"), LONG) == 0


def test_records_without_their_prefix_are_erased() -> None:
    scene = stopped()
    second = scene.keys(A, LONG)[16:32]
    gone = next(slot for slot, record in scene.records.items() if record.key == second)
    found = [stored for stored in scene.records.items() if stored[0] != gone]
    assert scene.restart(found) == 1 + 4  # one block of A, and the whole other branch
    assert scene.cache.tree.match(A, LONG).found.disk == 1
    assert len(scene.take_plan().erase) == 4
    scene.cache.check_invariants()


def test_records_that_do_not_fit_are_erased() -> None:
    scene = stopped()
    found = list(scene.records.items())
    smaller = PrefixCache(num_blocks=16, block_size=4, tiers=Tiers(0, 3))
    taken = smaller.restart.restore(found, now=1.0)
    erase = smaller.moves.take_plan().erase
    assert taken <= 3
    assert len(erase) == len(found) - taken
    assert {slot for slot, _ in found if slot >= 3} <= set(erase)
    smaller.check_invariants()


def spoil(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: replace(r, key=spoil(r.key)),
        lambda r: replace(r, parent_key=spoil(r.parent_key)),
        lambda r: replace(r, namespace=spoil(r.namespace)),
        lambda r: replace(r, token_ids=spoil(r.token_ids)),
        lambda r: replace(r, token_ids=r.token_ids[:-4]),
        lambda r: replace(r, namespace=r.namespace[:-1]),
    ],
)
def test_a_record_that_is_not_what_its_key_says_is_no_good(
    damage: Callable[[BlockRecord], BlockRecord],
) -> None:
    scene = stopped()
    ((slot, record), *others) = list(scene.records.items())
    taken = scene.restart([(slot, damage(record)), *others])
    assert taken < 10
    assert slot in scene.take_plan().erase
    scene.cache.check_invariants()
    assert scene.restart([(slot, record), *others]) == 10  # positive control


def test_a_second_record_of_one_block_is_erased() -> None:
    scene = stopped()
    record = scene.records[0]
    assert scene.restart([*scene.records.items(), (15, record)]) == 10
    assert scene.take_plan().erase in ((15,), (0,))


def test_where_keys_collide_neither_is_believed() -> None:
    scene = TierScene(16, disk=16, digest=ConstantDigest())
    scene.run(A, LONG)
    saved(scene)
    assert len(scene.records) == 4
    assert scene.restart() == 0
    assert len(scene.take_plan().erase) == 4


def test_only_an_empty_cache_with_a_disk_is_restored() -> None:
    scene = stopped()
    with pytest.raises(RestoreError):
        scene.cache.restart.restore(scene.records.items(), now=1.0)
    with pytest.raises(RestoreError):
        PrefixCache(num_blocks=4, block_size=4).restart.restore([], now=1.0)


def test_the_hottest_come_to_the_device_first() -> None:
    scene = TierScene(16, disk=16)
    for ids, times in ((LONG, 1), (tokens(*range(40, 57)), 4)):
        for _ in range(times):
            scene.run(A, ids)
    saved(scene)
    scene.restart()
    assert scene.cache.restart.hottest(5) == 5
    scene.copy_all()
    scene.cache.check_invariants()
    assert scene.cache.tree.match(A, tokens(*range(40, 57))).found.device == 4
    assert scene.cache.tree.match(A, LONG).found.device == 1
    assert scene.cache.restart.hottest(100) == 3
    assert scene.cache.restart.hottest(100) == 0


def test_no_more_is_warmed_than_there_is_free_room_for() -> None:
    scene = TierScene(6, disk=16)
    scene.run(A, LONG)
    saved(scene)
    scene.restart()
    lease = scene.must_acquire(path("b"), tokens(*range(60, 75)))
    assert scene.cache.restart.hottest(100) == 2
    assert scene.cache.restart.hottest(100) == 0
    scene.copy_all()
    assert lease.ready
    assert scene.cache.capacity.pool().free == 0


def test_save_writes_the_hottest_first_each_behind_its_prefix() -> None:
    scene = TierScene(16, disk=16)
    scene.run(A, LONG)
    scene.run(path("b"), LONG)
    scene.run(A, LONG)  # makes A the last used namespace
    assert scene.cache.restart.save(3) == 3
    records = scene.take_plan().records.values()
    assert {r.namespace for r in records} == {A.at(0)}
    assert {r.key for r in records} == {scene.keys(A, LONG)[i : i + 16] for i in (0, 16, 32)}


def test_save_obeys_the_limit_of_writes_and_gives_up_what_fails() -> None:
    scene = TierScene(16, disk=16, max_disk_writes=2)
    scene.run(A, LONG)
    assert scene.cache.restart.save(100) == 2
    assert scene.cache.restart.save(100) == 0
    scene.take_plan()
    scene.complete([(move, CopyOutcome.FAILED) for move in scene.under_way])
    assert scene.cache.restart.save(100) == 0
    scene.cache.check_invariants()


class CountingPolicy(LeastRecentlyUsed):
    def __init__(self) -> None:
        self.asked = 0

    def sort_key(self, node: Node) -> SortKey:
        self.asked += 1
        return super().sort_key(node)


def test_many_nodes_are_not_sorted_again_for_each_few_writes() -> None:
    policy = CountingPolicy()
    scene = TierScene(64, disk=64, max_disk_writes=2, policy=policy)
    for number in range(50):
        scene.run(path(f"{number}"), LONG[:5])
    policy.asked = 0
    while scene.cache.restart.save(100) or len(scene.cache.in_flight):
        scene.take_plan()
        scene.complete([(move, CopyOutcome.DONE) for move in scene.under_way])
    assert len(scene.records) == 50
    assert 50 <= policy.asked < 10 * 50, "a sort for each two writes asks 25 times as often"


def test_without_a_disk_nothing_is_saved() -> None:
    scene = TierScene(16, host=4)
    scene.run(A, LONG)
    assert scene.cache.restart.save(100) == 0
    assert scene.cache.moves.forget_disk() == 0


def test_a_disk_that_is_gone_takes_along_what_was_there_alone() -> None:
    scene = stopped()
    scene.restart()
    lease = scene.acquire_loading(A, LONG, None)
    assert lease is not None
    scene.copy_all()
    assert scene.empty_disk() == 6
    scene.cache.check_invariants()
    assert scene.cache.tree.match(A, LONG).found.device == 4
    assert scene.matches(A, FORK) == 8
    assert scene.matches(THROUGH, LONG) == 0
    assert scene.cache.eviction_log.by_reason(Tier.DISK)[Reason.TIER_GONE] == 4 + 6
    assert scene.read(lease, 16) == scene.kv(A, LONG)[:16]
    scene.run(THROUGH, LONG)  # the cache still serves requests
    saved(scene)
    scene.check_contents()
    assert scene.restart() == 8


def test_a_load_under_way_from_a_disk_that_is_gone_may_still_arrive_or_not() -> None:
    for outcome in CopyOutcome:
        scene = stopped()
        scene.restart()
        lease = scene.acquire_loading(A, LONG, None)
        assert lease is not None
        scene.take_plan()
        scene.empty_disk()
        scene.cache.check_invariants()
        assert scene.matches(A, LONG) == 0
        scene.complete([(move, outcome) for move in scene.under_way])
        scene.cache.check_invariants()
        assert lease.ready == (outcome is CopyOutcome.DONE)
        assert lease.failed != lease.ready
        scene.release(lease)
        scene.cache.flush()
        assert scene.cache.capacity.pool().free == 16


def test_a_write_to_a_disk_that_is_gone_has_not_arrived_whatever_is_reported() -> None:
    scene = TierScene(16, disk=16)
    scene.run(A, LONG)
    scene.cache.restart.save(100)
    scene.take_plan()
    first, *others = list(scene.under_way)
    scene.complete([(first, CopyOutcome.DONE)])
    scene.empty_disk()
    scene.complete([(move, CopyOutcome.DONE) for move in others])
    scene.cache.check_invariants()
    assert scene.cache.tree.match(A, LONG).found.device == 4
    assert scene.cache.eviction_log.written[Tier.DISK] == 0
    scene.check_contents()
    scene.take_plan()
    assert scene.records == {}
