"""Marked prefixes outlive pressure for their time, within their tenant's share of the cache."""

from __future__ import annotations

import numpy as np

from prefix_cache.eviction.shares import Quota
from prefix_cache.hashing import KEY_BYTES, TokenIds, block_keys
from prefix_cache.leases.retained_prefixes import MOST
from storage.move import Tier
from tests.prefix_cache.support.scene import Scene, finished, path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

ANNA, BEN = path("anna"), path("ben")


def prompt(number: int, blocks: int = 2) -> TokenIds:
    return np.arange(1000 * number, 1000 * number + 4 * blocks + 1, dtype=np.int32)


def run(scene: Scene, ids: TokenIds, seconds: float = 0.0, owner: str = "anna") -> int:
    """Run a request; with `seconds`, its whole prompt is marked. Return its cached tokens."""
    lease = scene.start(path(owner), ids, owner)
    if seconds:
        scene.cache.retain(lease, ids, seconds, now=scene.tick())
    scene.release(lease)
    return lease.cached_tokens


def two_owners(*, disk: int = 0) -> TierScene:
    """Give Anna and Ben half each of the room that running sequences leave."""
    scene = TierScene(24, disk=disk)
    scene.cache.quotas.partition({"anna": Quota(), "ben": Quota()}, {"anna": 16, "ben": 16})
    return scene


def listed(scene: Scene, owner: str = "anna") -> list[int]:
    found = scene.cache.retained.listed(owner, now=scene.now)
    return [sum(one.held.values()) for one in found]


def retained(scene: Scene) -> dict[str, int]:
    survey = scene.cache.survey
    survey.begin(scene.now)
    survey.advance(100)
    assert not survey.is_under_way
    return survey.known.retained


def test_a_marked_prefix_outlives_pressure_that_evicts_one_without_a_mark() -> None:
    scene = two_owners()
    run(scene, prompt(1), 1e6)
    run(scene, prompt(2))
    for number in range(3, 9):
        run(scene, prompt(number))
    assert scene.matches(ANNA, prompt(2)) == 0, "the control"
    assert scene.matches(ANNA, prompt(1)) == 8
    scene.cache.check_invariants()


def test_retained_blocks_are_counted_once_and_for_their_time() -> None:
    scene = two_owners()
    run(scene, prompt(1, 2), 300.0)
    run(scene, prompt(1, 4), 600.0)  # extends the first prompt
    run(scene, prompt(2))  # has no mark
    run(scene, prompt(3, 1), 300.0, owner="ben")
    assert retained(scene) == {"anna": 4, "ben": 1}
    scene.now += 400.0
    assert retained(scene) == {"anna": 4}
    scene.now += 400.0
    assert retained(scene) == {}


def test_prefixes_of_one_another_are_each_listed_whole() -> None:
    scene = two_owners()
    for blocks in (2, 6, 4):
        run(scene, prompt(1, blocks), 300.0)
    run(scene, prompt(2, 1), 300.0)
    assert listed(scene) == [1, 4, 6, 2]


def test_when_its_time_has_passed_it_is_evicted_like_any_other() -> None:
    scene = two_owners()
    run(scene, prompt(1), 300.0)
    assert listed(scene) == [2]
    scene.now += 300.0
    assert listed(scene) == []
    for number in range(3, 9):
        run(scene, prompt(number))
    assert scene.matches(ANNA, prompt(1)) == 0


def test_a_request_that_finds_it_begins_its_time_anew() -> None:
    scene = two_owners()
    run(scene, prompt(1), 300.0)
    scene.now += 200.0
    assert run(scene, prompt(1)) == 8  # has no mark
    scene.now += 200.0
    for number in range(3, 9):
        run(scene, prompt(number))
    assert scene.matches(ANNA, prompt(1)) == 8


def test_who_marks_everything_keeps_no_more_than_its_part_and_is_served() -> None:
    scene = two_owners()
    for number in range(10):
        assert run(scene, prompt(number), 1e6) == 0
    share = scene.cache.quotas.shares()["anna"][Tier.DEVICE]
    assert (share.held, share.ceiling) == (7, 8), "a block was made free for the last token"
    assert [scene.matches(ANNA, prompt(number)) for number in range(6, 10)] == [4, 8, 8, 8]
    assert listed(scene) == [2, 2, 2, 1]
    scene.cache.check_invariants()


def test_marks_cost_nobody_else_a_block_and_nobody_else_sees_them() -> None:
    scene = two_owners()
    for number in range(3):
        run(scene, prompt(number), owner="ben")
    for number in range(10):
        run(scene, prompt(number), 1e6)
    assert [scene.matches(BEN, prompt(number)) for number in range(3)] == [8] * 3
    assert (listed(scene, "ben"), len(listed(scene))) == ([], 4)
    [newest, *_] = scene.cache.retained.listed("anna", now=scene.now)
    assert finished(scene.cache.retained.forget("ben", newest.prefix_id, now=scene.now)) is None
    assert scene.matches(ANNA, prompt(9)) == 8
    assert finished(scene.cache.retained.forget("anna", newest.prefix_id, now=scene.now)) == 2


def test_of_a_published_namespace_nothing_is_retained_listed_or_forgotten() -> None:
    """Retain, list and forget nothing in a published namespace.

    Other tenants can find a published prefix even if no pin has adopted it from its tenant.
    """
    scene = two_owners()
    anna, ben = path("published", "anna", length=2), path("published", "ben", length=2)
    ids, published = prompt(1, blocks=3), prompt(1, blocks=2)
    lease = scene.start(anna, published, "anna")
    scene.cache.retain(lease, published, 1e6, now=scene.tick())
    scene.release(lease)
    assert listed(scene) == []
    lease = scene.start(anna, ids, "anna")
    scene.cache.retain(lease, ids, 1e6, now=scene.tick())
    scene.release(lease)
    [own] = scene.cache.retained.listed("anna", now=scene.now)
    assert (own.num_blocks, scene.matches(anna, ids), scene.matches(ben, ids)) == (3, 12, 8)
    assert retained(scene) == {"anna": 1}
    assert finished(scene.cache.retained.forget("anna", own.prefix_id, now=scene.now)) == 1
    assert (scene.matches(anna, ids), scene.matches(ben, ids)) == (8, 8)
    scene.cache.check_invariants()


def test_in_a_shared_namespace_others_blocks_are_not_retained() -> None:
    scene, group = two_owners(), path("group")
    theirs = prompt(1)
    both = np.concatenate([theirs[:8], tokens(1, 2, 3, 4, 5)])
    scene.release(scene.start(group, theirs, "ben"))
    lease = scene.start(group, both, "anna")
    scene.cache.retain(lease, both, 1e6, now=scene.tick())
    scene.release(lease)
    [one] = scene.cache.retained.listed("anna", now=scene.now)
    assert (one.num_blocks, listed(scene, "ben")) == (3, [])
    lease = scene.start(group, theirs, "anna")
    scene.cache.retain(lease, theirs[:8], 1e6, now=scene.tick())
    scene.release(lease)
    assert len(listed(scene)) == 1, "nothing of it is anna's"


def test_in_a_group_another_s_hit_begins_the_time_anew_and_elsewhere_not() -> None:
    scene, group, ids = two_owners(), path("group"), prompt(1)
    lease = scene.start(group, ids, "anna")
    scene.cache.retain(lease, ids, 300.0, now=scene.tick())
    scene.release(lease)
    for namespace, least, most in ((BEN, 90, 100), (group, 290, 300)):
        scene.now += 200.0 if namespace is BEN else 0.0
        scene.release(scene.start(namespace, ids, "ben"))
        [one] = scene.cache.retained.listed("anna", now=scene.now)
        assert least < one.left <= most


def test_only_whole_blocks_up_to_the_mark_are_retained() -> None:
    scene = two_owners()
    ids = prompt(1, blocks=5)
    lease = scene.start(ANNA, ids, "anna")
    scene.cache.retain(lease, ids[:11], 1e6, now=scene.tick())
    scene.release(lease)
    for number in range(3, 9):
        run(scene, prompt(number))
    assert scene.matches(ANNA, ids) == 8


def test_what_is_generated_after_a_marked_prompt_is_not_retained() -> None:
    scene = two_owners()
    ids = prompt(1)
    lease = scene.start(ANNA, ids, "anna")
    scene.cache.retain(lease, ids, 1e6, now=scene.tick())
    longer = np.concatenate([ids, np.arange(7, dtype=np.int32)])
    assert scene.cache.extend(lease, len(longer), now=scene.tick())
    scene.compute(lease, longer, len(ids), len(longer))
    scene.commit(lease, longer)
    scene.release(lease)
    assert scene.matches(ANNA, longer) == 16
    for number in range(3, 9):
        run(scene, prompt(number))
    assert scene.matches(ANNA, longer) == 8


def test_a_marked_prefix_goes_to_disk_though_nobody_has_read_it() -> None:
    scene = two_owners(disk=64)
    run(scene, prompt(1), 1e6)
    run(scene, prompt(2))
    for number in range(3, 12):
        run_when_possible(scene, prompt(number), 1e6)
    assert scene.matches(ANNA, prompt(2)) == 0, "the control"
    assert scene.matches(ANNA, prompt(1)) == 8
    held = scene.cache.retained.listed("anna", now=scene.now)[-1].held
    assert held == {Tier.DEVICE: 0, Tier.HOST: 0, Tier.DISK: 2}


def run_when_possible(scene: TierScene, ids: TokenIds, seconds: float) -> None:
    lease = None
    while lease is None:
        lease = scene.acquire(ANNA, ids, "anna")
        scene.copy_all()
    scene.compute(lease, ids, lease.cached_tokens, len(ids))
    scene.commit(lease, ids)
    scene.cache.retain(lease, ids, seconds, now=scene.tick())
    scene.release(lease)


def test_forgetting_leaves_what_other_prefixes_need() -> None:
    scene = two_owners()
    stem = prompt(1)
    one, other = (np.concatenate([stem[:8], prompt(n, 1)[:4], tokens(0)]) for n in (5, 6))
    run(scene, one, 1e6)
    run(scene, other, 1e6)
    [newest, oldest] = scene.cache.retained.listed("anna", now=scene.now)
    assert finished(scene.cache.retained.forget("anna", newest.prefix_id, now=scene.now)) == 1
    assert (scene.matches(ANNA, other), scene.matches(ANNA, one)) == (8, 12)
    assert finished(scene.cache.retained.forget("anna", newest.prefix_id, now=scene.now)) is None
    assert finished(scene.cache.retained.forget("anna", oldest.prefix_id, now=scene.now)) == 3
    assert scene.matches(ANNA, one) == 0
    scene.cache.check_invariants()


def test_forgetting_a_prefix_of_a_longer_marked_one_takes_no_block() -> None:
    scene = two_owners()
    ids = prompt(1, blocks=3)
    lease = scene.start(ANNA, ids, "anna")
    for length in (8, 12):
        scene.cache.retain(lease, ids[:length], 1e6, now=scene.tick())
    scene.release(lease)
    long, short = scene.cache.retained.listed("anna", now=scene.now)
    assert (short.num_blocks, long.num_blocks) == (2, 3)
    assert finished(scene.cache.retained.forget("anna", short.prefix_id, now=scene.now)) == 0
    assert scene.matches(ANNA, ids) == 12
    assert finished(scene.cache.retained.forget("anna", long.prefix_id, now=scene.now)) == 3


def test_a_prefix_that_another_cache_had_marked_is_forgotten_without_a_mark() -> None:
    """Forget a prefix that was marked in an earlier cache, so that no mark is left.

    The prefix is found by its last block's key, anywhere in a node, if the owner is the same.
    """
    scene = two_owners()
    ids = np.concatenate([prompt(1, 5), tokens(0)])
    for owner, namespace in (("anna", ANNA), ("ben", BEN)):
        scene.release(scene.start(namespace, ids, owner))
    key = block_keys(ANNA, ids, 4)[2 * KEY_BYTES : 3 * KEY_BYTES]
    assert forget(scene, "anna", key, is_marked=True) is None
    assert forget(scene, "ben", key, is_marked=False) == 0
    assert forget(scene, "anna", bytes(KEY_BYTES), is_marked=False) == 0
    assert scene.matches(ANNA, ids) == 20, "the control"
    assert forget(scene, "anna", key, is_marked=False) == 5
    assert (scene.matches(ANNA, ids), scene.matches(BEN, ids)) == (0, 20)
    run(scene, ids, 1e6)
    assert forget(scene, "anna", key, is_marked=False) == 0, "a longer one that is marked needs it"
    scene.cache.check_invariants()


def forget(scene: TierScene, owner: str, key: bytes, *, is_marked: bool) -> int | None:
    return finished(scene.cache.retained.forget(owner, key, now=scene.now, is_marked=is_marked))


def test_when_an_owner_is_flushed_its_list_is_empty() -> None:
    scene = two_owners()
    run(scene, prompt(1), 1e6)
    run(scene, prompt(1), 1e6, owner="ben")
    assert scene.cache.flush(owner="anna") == 2
    assert (listed(scene), listed(scene, "ben")) == ([], [2])


def test_the_list_has_a_bound() -> None:
    scene = Scene(4 * MOST)
    for number in range(MOST + 2):
        run(scene, prompt(number), 1e6)
    assert listed(scene) == [2] * MOST


def test_a_lease_that_shares_nothing_marks_nothing() -> None:
    scene = two_owners()
    lease = scene.must_acquire(ANNA, prompt(1), "anna", shares=False)
    scene.cache.retain(lease, prompt(1), 1e6, now=scene.tick())
    scene.release(lease)
    assert listed(scene) == []
