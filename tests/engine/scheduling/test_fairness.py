"""Tenants are served fairly by the real queue, scheduler and cache, counted in steps and tokens."""

from __future__ import annotations

import random

import pytest

from engine.scheduling.fairness.queue import QueueLimits
from tests.engine.rigs.market import Market, Shopper, documents, jain
from tests.examples import in_the_zoo

MAX_STEP_S = 0.1  # `WeightlessRunner` needs this many seconds for a step of 92 tokens
POOL = 700  # number of blocks; all documents together need 1,080


def twenty(flow: str | None = None) -> list[Shopper]:
    """Make 20 tenants; the largest asks for eight times as many tokens as the smallest."""
    return [
        Shopper(
            f"t{number:02}",
            documents(3, 16 + 16 * (number % 8), seed=number),
            suffix=4 + number % 5,
            flow=flow,
            most=40,
        )
        for number in range(20)
    ]


class Sale:
    """A run of twenty tenants, with each tenant's service at the moment when the first tenant is
    done.
    """

    def __init__(
        self, shoppers: list[Shopper], queue: QueueLimits, max_step_s: float | None = None
    ) -> None:
        self.market = Market(shoppers, num_blocks=POOL, queue=queue, max_step_s=max_step_s)
        while all(shopper.sent < 40 for shopper in shoppers):
            self.market.run(1)
        self.fairness = jain([shopper.service for shopper in shoppers])
        self.market.run_out()


@pytest.fixture(scope="module", params=[None, MAX_STEP_S])
def fair(request: pytest.FixtureRequest) -> Sale:
    """Run the tenants, with and without a bound for newcomers."""
    return Sale(twenty(), QueueLimits(quantum=64), request.param)


@pytest.fixture(scope="module")
def longest_prefix_first() -> Sale:
    """Run the same load as one flow: the request with the longest cached prefix goes first."""
    everything = QueueLimits(quantum=64, lookahead=10_000, patience=10_000, greed=100.0)
    return Sale(twenty("all"), everything)


def test_twenty_backlogged_tenants_are_served_alike(fair: Sale) -> None:
    assert fair.fairness >= 0.95


def test_the_cache_is_hit_nearly_as_often_as_with_the_longest_prefix_first(
    fair: Sale, longest_prefix_first: Sale
) -> None:
    assert 0.7 < longest_prefix_first.market.hit_rate < 0.95
    assert fair.market.hit_rate >= 0.9 * longest_prefix_first.market.hit_rate


def test_longest_prefix_first_over_all_is_not_fair(longest_prefix_first: Sale) -> None:
    """Positive control: the longest prefix first serves the tenants unequally."""
    assert longest_prefix_first.fairness < 0.5


def victim_and(*others: Shopper, max_step_s: float | None = None) -> Market:
    quiet = Shopper("victim", documents(2, 32, seed=1), backlog=1)
    market = Market([quiet, *others], num_blocks=600, max_step_s=max_step_s)
    market.run(400)
    return market


def queued(market: Market) -> list[int]:
    return sorted(market.shoppers[0].queued_steps)


@pytest.mark.parametrize("max_step_s", [None, MAX_STEP_S])
def test_a_flood_does_not_make_another_wait(max_step_s: float | None) -> None:
    alone = victim_and(Shopper("neighbour", documents(2, 32, seed=2), backlog=1))
    flood = Shopper("flood", documents(40, 160, seed=3), backlog=400, output=16)
    flooded = victim_and(flood, max_step_s=max_step_s)
    assert len(flooded.shoppers[0].queued_steps) > 50
    # The request is the next to start. It waits for the end of one of 8 running requests (one ends
    # every 16 / 8 steps), and for a flood's prompt of two steps.
    p99 = queued(flooded)[int(0.99 * len(queued(flooded)))]
    assert p99 <= queued(alone)[-1] + 8
    assert flooded.shoppers[1].sent > 200


def test_without_flows_the_same_flood_makes_another_wait() -> None:
    flood = Shopper("flood", documents(40, 160, seed=3), backlog=400, output=16, flow="all")
    quiet = Shopper("victim", documents(2, 32, seed=1), backlog=1, flow="all")
    market = Market([quiet, flood], num_blocks=600, queue=QueueLimits(greed=100.0, lookahead=1))
    market.run(400)
    assert quiet.sent == 2  # the first came together with the flood, the second still waits


@pytest.mark.parametrize("parts", [5, *in_the_zoo(2)])
def test_splitting_a_tenant_into_many_keys_gains_nothing(parts: int) -> None:
    def share(keys: int) -> float:
        """Return the share of a tenant with `keys` API keys, all in one flow."""
        mine = [
            Shopper(f"me{number}", documents(3, 32, seed=7), flow="me", backlog=12)
            for number in range(keys)
        ]
        rivals = [Shopper(f"r{n}", documents(3, 32, seed=20 + n)) for n in range(3)]
        market = Market([*mine, *rivals], num_blocks=500)
        market.run(400)
        services = [shopper.service for shopper in market.shoppers]
        return sum(services[:keys]) / sum(services)

    assert share(parts) <= share(1) * 1.01 + 0.005


def test_splitting_into_tenants_would_gain() -> None:
    """Count keys as tenants (positive control of the test above): more keys then get more
    service.
    """
    mine = [Shopper(f"me{number}", documents(3, 32, seed=7)) for number in range(3)]
    rivals = [Shopper(f"r{n}", documents(3, 32, seed=20 + n)) for n in range(3)]
    market = Market([*mine, *rivals], num_blocks=500)
    market.run(400)
    services = [shopper.service for shopper in market.shoppers]
    assert sum(services[:3]) / sum(services) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("seed", [*range(4), *in_the_zoo(*range(4, 12))])
def test_two_whose_requests_differ_by_16_times_stay_together(seed: int) -> None:
    drawn = random.Random(seed)
    small, output = drawn.choice([4, 8, 16]), drawn.randrange(1, 9)
    pair = [
        Shopper("small", [[]], suffix=small, output=output, backlog=40),
        Shopper("large", [[]], suffix=16 * small, output=output, backlog=4),
    ]
    quantum, running = 64, drawn.choice([2, 8])
    market = Market(
        pair,
        num_blocks=2000,
        max_running=running,
        max_step_s=drawn.choice([None, MAX_STEP_S]),
        seed=seed,
    )
    largest = 16 * small + 2 * output
    for _ in range(40):
        market.run(10)
        # A request is charged while it is computed, so one flow may own all running requests before
        # it is charged. A flow without running requests may start although it owes one round of
        # service.
        assert abs(pair[0].service - pair[1].service) <= 2 * quantum + running * largest


def test_a_flow_saves_up_no_credit_while_idle() -> None:
    busy, late = (
        Shopper("busy", documents(3, 32, seed=1)),
        Shopper("late", documents(3, 32, seed=2), backlog=0),
    )
    market = Market([busy, late], num_blocks=500)
    market.run(300)
    before, late.backlog = busy.service, 12
    market.run(300)
    assert late.service <= (busy.service - before) * 1.1 + 500
    assert late.service >= (busy.service - before) * 0.9 - 500


def test_batch_waits_for_interactive_and_is_not_starved() -> None:
    shoppers = [
        Shopper("talk", documents(3, 32, seed=1)),
        Shopper("night", documents(3, 32, seed=2), priority="batch"),
    ]
    market = Market(shoppers, num_blocks=500)
    market.run(500)
    talk, night = (shopper.service for shopper in shoppers)
    assert night / (talk + night) == pytest.approx(1 / 8, abs=0.04)
    shoppers[0].backlog = 0
    before = night
    market.run(150)
    assert shoppers[1].service - before > 125 * 8  # alone, the tenant gets all the service
