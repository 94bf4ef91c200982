"""In partitioned tiers a tenant's hits depend only on its own requests.

One owner, the spy, makes the same requests in two worlds. In each, another owner asks, runs, grows,
waits and leaves in another way. The spy's cached tokens are compared, by tier. Positive control:
the same cache with all tiers shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_cache.eviction.policies import policy_by_name
from prefix_cache.eviction.shares import PUBLISHED, Quota, partition
from prefix_cache.leases.lease import Lease
from prefix_cache.names import PolicyName
from storage.move import Tier
from tests.prefix_cache.support.scene import path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

SIZE = 2
WORKING = 10  # number of blocks in the working area, which LONGEST needs beside a partition of 12
MOST = SIZE * (12 + WORKING)  # number of tokens of the longest request
# number of blocks of each owner's longest request
LONGEST = {"spy": 12 + WORKING, "other": 12 + WORKING}
SPY, OTHER = "spy", "other"
ONLY_DEVICE, WITH_HOST, WITH_DISK, ALL = (0, 0), (14, 0), (0, 30), (12, 30)
Lower = tuple[int, int]


@dataclass
class Life:
    """The other owner's actions between the spy's requests, drawn from a seed."""

    random: Random
    scene: TierScene
    running: list[tuple[Lease, list[int]]]

    def go_on(self) -> None:
        """Do some random actions; copies may remain pending."""
        for _ in range(self.random.randrange(6)):
            self.random.choice((self.ask, self.ask, self.grow, self.leave, self.copy, self.mark))()

    def ask(self) -> None:
        ids = [self.random.randrange(3) for _ in range(self.random.randint(1, 30))]
        lease = self.scene.acquire(path(OTHER), tokens(*ids), OTHER)
        if lease is None:
            return
        if not lease.ready:
            self.scene.end_copies()
        if lease.failed:
            self.scene.release(lease)
            return
        self.scene.compute(lease, tokens(*ids), lease.cached_tokens, len(ids))
        self.scene.commit(lease, tokens(*ids))
        self.running.append((lease, ids))

    def grow(self) -> None:
        if self.running:
            lease, ids = self.random.choice(self.running)
            if len(ids) > MOST - 9:
                return
            more = [self.random.randrange(3) for _ in range(self.random.randint(1, 9))]
            if self.scene.cache.extend(lease, len(ids) + len(more), now=self.scene.tick()):
                before = len(ids)
                ids += more
                self.scene.compute(lease, tokens(*ids), before, len(ids))
                self.scene.commit(lease, tokens(*ids))

    def leave(self) -> None:
        if self.running:
            lease, _ = self.running.pop(self.random.randrange(len(self.running)))
            self.scene.release(lease)

    def copy(self) -> None:
        self.scene.end_copies()

    def mark(self) -> None:
        if self.running:
            lease, ids = self.random.choice(self.running)
            self.scene.cache.retain(lease, tokens(*ids), 1e3, now=self.scene.tick())


def make_scene(lower: Lower, policy: PolicyName, *, is_partitioned: bool) -> TierScene:
    scene = TierScene(
        34, SIZE, host=lower[0], disk=lower[1], policy=policy_by_name(policy), ahead=2
    )
    if is_partitioned:
        scene.cache.quotas.partition({SPY: Quota(), OTHER: Quota()}, LONGEST)
    return scene


def answer(scene: TierScene, life: Life, ids: list[int]) -> tuple[int, ...]:
    """Run a request of the spy; return its cached tokens by tier, as in `usage`."""
    asked = tokens(*ids)
    at = scene.cache.tree.match(path(SPY), asked[:-1]).found
    for _ in range(50):
        lease = scene.acquire(path(SPY), asked, SPY)
        if lease is not None:
            break
        if len(scene.cache.in_flight):
            scene.end_copies()
        else:
            life.leave()  # the scheduler would preempt the latest arrival
    assert lease is not None, "the spy is never served"
    while not lease.ready:
        scene.end_copies()
    scene.compute(lease, asked, lease.cached_tokens, len(ids))
    scene.commit(lease, asked)
    # retained for longer than the test, in whose clock the other owner's actions take time
    if len(ids) % 3 == 0:
        scene.cache.retain(lease, asked, 1e9, now=scene.tick())
    scene.release(lease)
    while scene.take_plan().moves or scene.under_way:
        scene.end_copies()
    return (lease.cached_tokens, at.device, at.host, at.disk)


def answers(
    spy: int, other: int, lower: Lower, policy: PolicyName = "lru", *, is_partitioned: bool = True
) -> list[tuple[int, ...]]:
    scene = make_scene(lower, policy, is_partitioned=is_partitioned)
    random, life = Random(spy), Life(Random(other), scene, [])
    counted_in_parent = []
    for _ in range(25):
        life.go_on()
        ids = [random.randrange(2) for _ in range(random.randint(1, 26))]
        counted_in_parent.append(answer(scene, life, ids))
        scene.cache.check_invariants()
    scene.check_contents()
    return counted_in_parent


@pytest.mark.parametrize("lower", [ONLY_DEVICE, WITH_HOST, WITH_DISK, ALL])
@settings(max_examples=settings().max_examples // 3)
@given(spy=st.integers(0, 2**32), one=st.integers(0, 2**32), another=st.integers(0, 2**32))
def test_a_spy_is_told_the_same_whatever_others_do(
    lower: Lower, spy: int, one: int, another: int
) -> None:
    assert answers(spy, one, lower) == answers(spy, another, lower)


@settings(max_examples=settings().max_examples // 3)
@given(spy=st.integers(0, 2**32), one=st.integers(0, 2**32), another=st.integers(0, 2**32))
def test_the_policy_that_learns_does_not_learn_from_one_owner_for_another(
    spy: int, one: int, another: int
) -> None:
    assert answers(spy, one, ALL, "value") == answers(spy, another, ALL, "value")


@pytest.mark.parametrize("lower", [ONLY_DEVICE, WITH_HOST, WITH_DISK, ALL])
def test_the_control_where_tiers_are_shared_the_spy_is_told_different_things(lower: Lower) -> None:
    differs = 0
    for spy in range(10):
        lives = [answers(spy, other, lower, is_partitioned=False) for other in (1, 2)]
        differs += lives[0] != lives[1]
    assert differs > 7


def test_parts_are_fair_shares_and_never_more_than_the_whole() -> None:
    quotas = {"a": Quota(), "b": Quota(weight=3), "c": Quota(0.5, 0.5), "d": Quota(0, 0.05)}
    parts = partition(quotas)
    assert parts == pytest.approx({"a": 0.1125, "b": 0.3375, "c": 0.5, "d": 0.05})
    floors = partition({name: Quota(0.8) for name in "ab"})
    assert floors == pytest.approx({"a": 0.5, "b": 0.5})


def shares(scene: TierScene, tier: Tier = Tier.DEVICE) -> dict[str, int]:
    return {owner: held[tier].held for owner, held in scene.cache.quotas.shares().items()}


def fill(scene: TierScene, owner: str, blocks: int) -> None:
    for number in range(blocks):
        ids = tokens(number, 7)
        while (lease := scene.acquire(path(owner), ids, owner)) is None:
            assert scene.copy_all()
        scene.compute(lease, ids, 0, 2)
        scene.commit(lease, ids)
        scene.release(lease)


def test_nobody_keeps_more_than_a_part_though_all_is_free() -> None:
    scene = make_scene(ONLY_DEVICE, "lru", is_partitioned=True)
    fill(scene, SPY, 30)
    assert shares(scene) == {SPY: 12, OTHER: 0}


def test_a_longer_request_runs_in_the_working_area_and_leaves_no_more_than_its_part() -> None:
    scene = make_scene(ONLY_DEVICE, "lru", is_partitioned=True)
    fill(scene, SPY, 12)
    long = tokens(*range(MOST))
    lease = scene.start(path(OTHER), long, OTHER)
    assert shares(scene) == {SPY: 12, OTHER: 12 + WORKING}
    scene.release(lease)
    assert shares(scene) == {SPY: 12, OTHER: 12}


def test_one_that_is_too_long_for_that_waits_until_it_is_alone_and_is_served() -> None:
    scene = make_scene(ONLY_DEVICE, "lru", is_partitioned=True)
    fill(scene, SPY, 12)
    running = scene.start(path(SPY), tokens(1), SPY)
    too_long = tokens(*range(MOST + 4))
    assert scene.acquire(path(OTHER), too_long, OTHER) is None
    scene.release(running)
    held = shares(scene)[SPY]
    lease = scene.must_acquire(path(OTHER), too_long, OTHER)
    assert shares(scene)[SPY] < held  # the leak that the documentation describes
    scene.release(lease)


def test_new_parts_hold_at_once_and_none_are_shared_tiers_again() -> None:
    scene = make_scene(ALL, "lru", is_partitioned=True)
    fill(scene, SPY, 30)
    scene.end_copies()
    scene.cache.quotas.partition({SPY: Quota(0, 0.25), OTHER: Quota()}, LONGEST)
    scene.end_copies()
    assert shares(scene)[SPY] == (34 - 34 // 2) // 4
    scene.cache.quotas.partition({})
    fill(scene, SPY, 30)
    scene.copy_all()
    assert shares(scene)[SPY] > 24
    scene.cache.check_invariants()


def test_what_an_owner_without_a_part_computes_is_not_kept() -> None:
    scene = make_scene(ALL, "lru", is_partitioned=True)
    fill(scene, "stranger", 3)
    scene.copy_all()
    assert shares(scene).get("stranger", 0) == 0


def test_a_pinned_prefix_takes_from_all_parts_and_is_not_trimmed() -> None:
    scene = make_scene(ONLY_DEVICE, "lru", is_partitioned=True)
    fill(scene, SPY, 12)
    published = tokens(*range(16))
    scene.run(path("published"), published, PUBLISHED)
    pin = scene.cache.pin(path("published"), published, owner=PUBLISHED, now=scene.tick())
    assert pin is not None
    scene.take_plan()
    assert scene.matches(path("published"), published) == 16
    assert shares(scene)[SPY] == (34 - 8) // 2 // 2  # half of the room is now the working area
    scene.release(pin)
    scene.take_plan()
    assert scene.matches(path("published"), published) == 0


def test_a_growing_sequence_pushes_its_own_blocks_down_though_others_have_none_free() -> None:
    """Push down a growing sequence's own blocks, even if others have no free ones.

    In shared tiers such a drop would reveal how full the tier is.
    """
    kept = []
    for others in (0, 12):
        scene = make_scene(WITH_HOST, "lru", is_partitioned=True)
        fill(scene, OTHER, others)
        fill(scene, SPY, 12)
        scene.end_copies()
        while (lease := scene.acquire(path(SPY), tokens(99, 99), SPY)) is None:
            scene.end_copies()
        for length in range(4, 9, 2):
            while not scene.cache.extend(lease, length, now=scene.tick()):
                scene.end_copies()
        scene.release(lease)
        scene.copy_all()
        kept.append([scene.cache.tree.match(path(SPY), tokens(n, 7)).found.host for n in range(12)])
    assert kept[0] == kept[1]
    assert sum(kept[0]) > 2
