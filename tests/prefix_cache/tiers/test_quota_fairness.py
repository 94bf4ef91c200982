"""No owner loses by sharing, and none gains by strategy (threats.md 5, "Cache space").

This includes the eviction channel (1.1): the hits of an owner that fills only its own share reveal
nothing of others; without quotas they reveal everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np
import pytest

from prefix_cache.eviction.policies import policy_by_name
from prefix_cache.eviction.shares import Quota
from prefix_cache.names import PolicyName
from tests.examples import in_the_zoo
from tests.prefix_cache.support.market import (
    Market,
    Request,
    Sizes,
    conversations,
    flood,
    mixed,
    prompt,
)

TIERS = [Sizes(120), Sizes(120, 180), Sizes(120, 120, 240)]
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0}
SHARE = {owner: weight / sum(WEIGHTS.values()) for owner, weight in WEIGHTS.items()}


def demands(random: Random, requests: int = 120) -> dict[str, list[Request]]:
    """Draw the requests of owners with few topics, with many topics, and of one that never repeats
    a prompt.
    """
    topics = {"a": 8, "b": 60, "c": 30}
    parts = {o: conversations(random, o, requests, topics=n) for o, n in topics.items()}
    return parts | {"d": flood("d", requests, length=10)}


class TestNobodyIsWorseOff:
    @pytest.mark.parametrize("sizes", TIERS)
    @pytest.mark.parametrize("seed", [0, *in_the_zoo(1)])
    @pytest.mark.parametrize("floors", [False, True])
    def test_than_alone_with_its_share(self, sizes: Sizes, seed: int, floors: bool) -> None:
        random = Random(seed)
        parts = demands(random)
        quotas = {
            owner: Quota(floor=SHARE[owner] if floors else 0.0, weight=weight)
            for owner, weight in WEIGHTS.items()
        }
        shared = Market(sizes, quotas)
        shared.serve_all(mixed(random, list(parts.values())))
        for owner, requests in parts.items():
            alone = Market(sizes.part(SHARE[owner]), {owner: Quota()})
            alone.serve_all(requests)
            assert shared.hit_rate(owner) >= alone.hit_rate(owner) - 0.01, owner

    def test_control_without_quotas_somebody_is_worse_off(self) -> None:
        random = Random(1)
        parts = demands(random)
        shared = Market(Sizes(120))
        shared.serve_all(mixed(random, [*parts.values(), *[flood("d", 900, begin=999)]]))
        alone = Market(Sizes(120).part(SHARE["c"]))
        alone.serve_all(parts["c"])
        assert shared.hit_rate("c") < alone.hit_rate("c") - 0.05


class TestStrategy:
    """Tests of two honest owners and one with a strategy; all have the same weight."""

    @pytest.mark.parametrize("seed", range(3))
    def test_padding_prompts_takes_nothing_from_others_and_gains_nothing(self, seed: int) -> None:
        plain = conversations(Random(seed + 9), "c", 300, topics=40)
        quotas = {name: Quota() for name in "abc"}
        found, others = [], []
        for requests in (plain, [padded(request, n) for n, request in enumerate(plain)]):
            random = Random(seed)
            parts = [conversations(Random(seed + n), o, 300, topics=30) for n, o in enumerate("ab")]
            market = Market(Sizes(120), quotas)
            market.serve_all(mixed(random, [*parts, requests]))
            found.append(market.found["c"])
            others.append((market.found["a"], market.found["b"]))
        assert found[1] <= 1.01 * found[0]
        for before, after in zip(*others, strict=True):
            assert after >= 0.99 * before

    def test_many_keys_of_one_tenant_are_one_owner(self) -> None:
        """Count the requests of all of a tenant's keys under one owner, the tenant, with one
        quota.
        """
        market = Market(Sizes(60), {"one": Quota(), "many": Quota()})
        market.serve_all(flood("one", 10, length=6))
        for key in range(10):
            market.serve_all(flood("many", 5, begin=100 * key + 50, length=6))
        assert (market.held("one"), market.held("many")) == (30, 30)


def padded(request: Request, n: int) -> Request:
    """Return the request with `n` unique tokens appended."""
    return Request(request.owner, np.concatenate([request.prompt, prompt(5000 + n, length=6)]))


ATTACKER, VICTIM = "attacker", "victim"
HALF = Quota(floor=0.5, ceiling=0.5)


class TestTheEvictionChannel:
    """Tests of an attacker that fills its share, and then checks how much of it a victim has
    evicted.
    """

    def observations(
        self, sizes: Sizes, quotas: Mapping[str, Quota] | None, policy: PolicyName, fill: int
    ) -> list[tuple[bool, tuple[int, ...]]]:
        random = Random(11)
        market = Market(sizes, quotas, policy_by_name(policy))
        mine = flood(ATTACKER, fill, length=4)
        seen, used = [], 0
        for _ in range(80):
            market.serve_all(mine)
            active = random.random() < 0.5
            if active:
                count = random.randint(12, 16)
                market.serve_all(flood(VICTIM, count, begin=100 + used, length=5))
                used += count
            seen.append((active, tuple(market.serve_all(mine))))
        market.cache.check_invariants()
        return seen

    def advantage(self, seen: list[tuple[bool, tuple[int, ...]]]) -> float:
        """Return the advantage of the best guess from hits, learned on one half and tested on the
        other.
        """
        half = len(seen) // 2
        by_hits: dict[int, int] = {}
        for active, hits in seen[:half]:
            by_hits[sum(hits)] = by_hits.get(sum(hits), 0) + (1 if active else -1)
        guesses = [(active, by_hits.get(sum(hits), 0) > 0) for active, hits in seen[half:]]
        right = [g for active, g in guesses if active]
        wrong = [g for active, g in guesses if not active]
        return abs(sum(right) / len(right) - sum(wrong) / len(wrong))

    @pytest.mark.parametrize(
        ("sizes", "policy"),
        [
            (Sizes(64), "lru"),
            (Sizes(64), "value"),
            (Sizes(64, 40), "lru"),
            (Sizes(64, 40, 60), "lru"),
        ],
    )
    def test_an_owner_that_fills_its_part_learns_nothing(
        self, sizes: Sizes, policy: PolicyName
    ) -> None:
        for attacker in (HALF, Quota(floor=0.5)):
            quotas = {ATTACKER: attacker, VICTIM: Quota(floor=0.5)}
            assert self.advantage(self.observations(sizes, quotas, policy, 8)) < 0.05

    def test_an_owner_that_asks_for_more_than_its_ceiling_learns_nothing(self) -> None:
        quotas = {ATTACKER: HALF, VICTIM: Quota(floor=0.5)}
        assert self.advantage(self.observations(Sizes(64), quotas, "lru", 12)) < 0.05

    def test_without_quotas_the_guess_is_right(self) -> None:
        assert self.advantage(self.observations(Sizes(64), None, "lru", 8)) > 0.9

    def test_an_owner_that_borrows_sees_when_others_want_their_share(self) -> None:
        """Borrow from other owners: the borrower sees when they want their share.

        This is the documented price of lending. A ceiling at the floor avoids it.
        """
        seen = {}
        for attacker in (Quota(floor=0.5), HALF):
            market = Market(Sizes(64), {ATTACKER: attacker, VICTIM: Quota(floor=0.5)})
            mine = flood(ATTACKER, 12, length=4)
            hits = []
            for theirs in ([], [], flood(VICTIM, 6, begin=50, length=5)):
                market.serve_all(theirs)
                hits.append(sum(market.serve_all(mine)))
            seen[attacker.ceiling] = hits
        assert seen[1.0][1] == 36 > seen[1.0][2]
        assert seen[0.5][1] == seen[0.5][2]

    def test_hits_on_the_device_are_the_same_whatever_others_do(self) -> None:
        """Compare each request's hits on the device, whatever others do.

        The prompts come again, and exceed the owner's share.
        """
        answers = []
        for others in (0, 300):
            random = Random(5)
            mine = conversations(random, ATTACKER, 300, topics=20)
            market = Market(Sizes(64), {ATTACKER: HALF, VICTIM: Quota(floor=0.5)})
            theirs = iter(conversations(Random(6), VICTIM, others, topics=90))
            hits = []
            for request in mine:
                hits.append(market.serve(request))
                for other in [next(theirs, None)]:
                    if other is not None:
                        market.serve(other)
            answers.append(hits)
        assert answers[0] == answers[1]
