"""The queue's order reveals to no tenant which prompts another tenant has cached.

A spy guesses a prompt, and watches when its guesses are served among its own dummies. It must see
the same order whatever a victim has cached. As a positive control, one queue sorts all flows by
cached prefix: there the order reveals the guess.
"""

from __future__ import annotations

import random

import pytest

from engine.scheduling.fairness.queue import FairQueue, QueueLimits
from engine.sequences.sequence import Sequence
from tests.engine.rigs.sequences import waiting

VICTIM, SPY, OTHER = "victim", "spy", "bystander"
# tokens charged for each request, cached or not, since different charges would reveal the cache
COST = 60


def order(cached: dict[str, int], seed: int, *, one_flow: bool = False) -> list[str]:
    """Serve a mix of three tenants' requests; return the ids in the order of service."""
    drawn = random.Random(seed)
    mix = [f"{flow}-{n}" for flow in (VICTIM, SPY, OTHER) for n in range(6)]
    drawn.shuffle(mix)
    queue = FairQueue(QueueLimits(quantum=100, greed=100.0, lookahead=1000, patience=1000))
    for name in mix:
        queue.push(waiting(name, flow="all" if one_flow else name.split("-")[0]))
    served = list[str]()

    def rank(sequence: Sequence) -> int:
        return cached.get(sequence.request_id, 0)

    while (choice := queue.select(rank)) is not None:
        queue.take(choice)
        queue.charge(choice, COST)
        served.append(choice.request_id)
    return served


def victims_cache(seed: int) -> dict[str, int]:
    """Draw the cached tokens of each of the victim's requests."""
    drawn = random.Random(1000 + seed)
    return {f"{VICTIM}-{n}": drawn.choice([0, 16, 64, 512]) for n in range(6)}


def places(served: list[str], flow: str) -> list[int]:
    return [place for place, name in enumerate(served) if name.startswith(flow)]


@pytest.mark.parametrize("seed", range(25))
def test_others_are_served_in_the_same_order_whatever_a_tenant_has_cached(seed: int) -> None:
    without, within = order({}, seed), order(victims_cache(seed), seed)
    for flow in (SPY, OTHER):
        assert places(within, flow) == places(without, flow)
    assert [name for name in within if VICTIM not in name] == [
        name for name in without if VICTIM not in name
    ]


def test_the_victims_own_order_does_follow_its_cache() -> None:
    """Order the victim's own requests (positive control): within its flow the order depends on the
    cache.
    """
    changed = [order(victims_cache(seed), seed) != order({}, seed) for seed in range(25)]
    assert sum(changed) > 20


def spies_place(hit: bool, seed: int, *, shared: bool) -> int:
    """Return the position at which a spy's guess is served among its dummies, on a hit or a miss.

    With `shared`, there is one queue, and the victim's prefix counts for the spy too.
    """
    cached = victims_cache(seed) | {f"{VICTIM}-0": 512 if hit else 0}
    if shared and hit:
        cached[f"{SPY}-0"] = 512
    return order(cached, seed, one_flow=shared).index(f"{SPY}-0")


def spies_places(hit: bool, *, shared: bool) -> list[int]:
    return [spies_place(hit, seed, shared=shared) for seed in range(40)]


def test_the_place_of_a_guess_is_independent_of_the_victim() -> None:
    """Compare the guess's positions: they are equal in each mix, so no statistics could find a
    difference.
    """
    assert spies_places(True, shared=False) == spies_places(False, shared=False)


def test_control_one_queue_by_longest_prefix_would_reveal_the_guess() -> None:
    hits, misses = spies_places(True, shared=True), spies_places(False, shared=True)
    assert sum(misses) - sum(hits) > 3 * len(hits)
