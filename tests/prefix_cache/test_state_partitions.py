"""In partitioned tiers a tenant finds its states again whatever other tenants run.

A spy makes the same requests in two worlds. In each, another owner asks, runs and leaves in another
way. Positive control: the same cache with shared tiers.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from prefix_cache.cache import DEVICE_ONLY, PrefixCache
from prefix_cache.eviction.shares import Quota
from prefix_cache.hashing import block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.tiers.tier_pools import Tiers
from tests.prefix_cache.support.scene import path

SIZE, LONGEST = 2, {"spy": 110, "other": 110}
SPY, OTHER = "spy", "other"
HOST = Tiers(host_blocks=40, host_states=8)


class Scene:
    """A cache of a model with recurrent layers, whose copies end at once."""

    def __init__(self, num_states: int, tiers: Tiers, *, is_partitioned: bool) -> None:
        self.cache = PrefixCache(
            num_blocks=200, block_size=SIZE, num_states=num_states, tiers=tiers, max_running=2
        )
        if is_partitioned:
            self.cache.quotas.partition({SPY: Quota(), OTHER: Quota()}, LONGEST)
        self.now = 0.0

    def computed(self, owner: str, ids: list[int]) -> Lease | None:
        """Compute a prompt, and keep the state before its last token; return None if there is no
        room.
        """
        self.now += 1.0
        asked, where = np.array(ids, np.int32), path(owner)
        keys, wanted = block_keys(where, asked, SIZE), (len(ids) - 1) // SIZE * SIZE
        lease = self.cache.acquire(where, asked, owner=owner, now=self.now)
        if lease is None:
            self.end_copies()  # completed copies may make room
            lease = self.cache.acquire(where, asked, owner=owner, now=self.now)
        self.end_copies()
        if lease is None or lease.states is None:
            return None
        self.cache.states.want(lease, [wanted])
        at = lease.cached_tokens
        while at < len(ids):
            at = lease.states.row_end(at, len(ids), is_cut=False)
            self.cache.states.launched(lease, at, lease.states.next_out())
            self.cache.commit(lease, asked, at, keys, now=self.now)
        return lease

    def release(self, lease: Lease) -> None:
        self.cache.release(lease, now=self.now)
        self.end_copies()

    def end_copies(self) -> None:
        while moves := self.cache.moves.take_plan().moves:
            self.cache.moves.complete(done=moves)


def answers(
    spy: int, other: int, num_states: int, tiers: Tiers, *, is_partitioned: bool = True
) -> list[int]:
    """Return the cached tokens of the spy's requests."""
    scene = Scene(num_states, tiers, is_partitioned=is_partitioned)
    own, others, running, told = Random(spy), Random(other), list[Lease](), list[int]()
    for _ in range(30):
        for _ in range(others.randrange(6)):
            if others.random() < 0.7:
                ids = [others.randrange(3) for _ in range(others.randint(2, 12))]
                lease = scene.computed(OTHER, ids)
                running += [] if lease is None else [lease]
            elif running:
                scene.release(running.pop(others.randrange(len(running))))
        ids = [own.randrange(2) for _ in range(own.randint(3, 14))]
        while (lease := scene.computed(SPY, ids)) is None:
            scene.release(running.pop())  # the scheduler would preempt the latest arrival
        told.append(lease.cached_tokens)
        scene.release(lease)
        scene.cache.check_invariants()
    return told


CASES = [(9, HOST), (15, DEVICE_ONLY), (21, HOST)]


@pytest.mark.parametrize(("num_states", "tiers"), CASES)
def test_a_spy_finds_the_same_states_whatever_others_run(num_states: int, tiers: Tiers) -> None:
    for spy in range(10):
        assert answers(spy, 1000 + spy, num_states, tiers) == answers(
            spy, 2000 + spy, num_states, tiers
        )


def test_the_control_where_tiers_are_shared_the_spy_is_told_different_things() -> None:
    differs = 0
    for spy in range(10):
        lives = [answers(spy, other, 15, HOST, is_partitioned=False) for other in (1, 2)]
        differs += lives[0] != lives[1]
    assert differs > 4


def test_sequences_keep_to_their_slots_and_one_that_is_alone_to_none() -> None:
    scene = Scene(5, DEVICE_ONLY, is_partitioned=True)  # has room for one sequence
    first = scene.computed(OTHER, [1, 1, 1, 1, 1])
    assert first is not None
    assert scene.computed(SPY, [1, 1, 1, 1, 1]) is None
    scene.release(first)
    assert scene.computed(SPY, [1, 1, 1, 1, 1]) is not None
