"""Three engines and two gateways with one Redis keep answers, limits and tenants right, although
networks fail under load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from cli.isolation.cases import CASES
from cli.isolation.eviction import LEVELS
from cli.isolation.verdict import CONTROL_BITS
from cli.options.gateway_options import PRICES
from tests.doubles.gateway.redis_server import redis_server
from tests.doubles.replicas.proxied_link import BOTH, Direction, ProxiedLink
from tests.doubles.waiting import wait_for
from tests.seams.support.installation import (
    BothLoads,
    Installation,
    admin,
    asked,
    delete_tenants,
    flush,
    found_by,
    has_noted,
    heavy,
    is_warm,
    limit,
    most_cached,
    newest,
    started,
    verified,
)
from tests.seams.support.machines import machines
from tests.seams.support.replica_load import (
    AT_ONCE,
    PROMPTS,
    TOKENS,
    WITHIN_S,
    body,
    cached,
    has_ended,
    hit_rate,
    is_in,
    lost,
    seen,
    shares,
    states,
    used,
    wrong,
)

FEW = 6  # number of prompts; each engine has room for all of them
TRIES = 5  # maximum number of times that a link is held until a request that has not begun is moved
ONE_WAY: tuple[Direction, ...] = ("back",)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    directory = tmp_path_factory.mktemp("machines")
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path_factory.mktemp("redis")))
        started = stack.enter_context(machines(directory, redis, 3))
        one = stack.enter_context(started.gateway("gateway-1"))
        two = stack.enter_context(started.gateway("gateway-2"))
        installation = Installation(started, one, two)
        wait_for(installation.all_ready, WITHIN_S)
        yield installation


@pytest.fixture(scope="module")
def right(installed: Installation) -> list[list[str]]:
    """Return each prompt's answer, one after the other."""
    with installed.one.client() as client:
        answers = [client.post("/v1/completions", json=body(n, TOKENS)) for n in range(PROMPTS)]
    return [one.json()["choices"][0]["logprobs"]["tokens"] for one in answers]


def expect_served_once(installed: Installation, loads: BothLoads, right: list[list[str]]) -> None:
    """Check that no answer is lost or wrong, and that charges equal the tokens that were sent."""
    streams = loads.streams
    assert wrong(streams, right) == []
    assert lost(streams) == []
    wait_for(lambda: used(installed.two, loads.key)["requests"] == len(streams), 20)
    generated = used(installed.two, loads.key)["generated_tokens"]
    assert generated == sum(len(one.tokens) for one in streams)


async def hold_back(
    installed: Installation, loads: BothLoads, link: ProxiedLink, directions: tuple[Direction, ...]
) -> None:
    """Hold a link's data until its engine counts as away and moved requests have ended."""
    running = await loads.until_waits_in(link)
    link.hold(*directions)
    try:
        await seen(partial(installed.is_away, link), 20)
        assert installed.one.is_ready(), "the others serve"
        # At most two requests had begun, since two run at once, and only these still wait.
        await seen(partial(has_ended, running, len(running) - 2), WITHIN_S)
    finally:
        link.heal()
    await asyncio.gather(*running)
    await seen(installed.all_ready, 20)


async def test_what_a_network_holds_back_moves_or_waits_and_is_served_once(
    installed: Installation, right: list[list[str]]
) -> None:
    loads, repeating, before = BothLoads(installed), heavy(installed.one), installed.moved()
    rate = hit_rate(installed.one, repeating, FEW)
    assert rate > 0.5
    for link, directions in zip(installed.links[1:], [BOTH, ONE_WAY], strict=True):
        moved = installed.moved()
        for _ in range(TRIES):
            # no request moved: all had begun or ended before the network was held
            if installed.moved() == moved:
                await hold_back(installed, loads, link, directions)
    await loads.close()
    expect_served_once(installed, loads, right)
    # If data is held for more than 10 s, the engine counts as dead. This may happen on a busy
    # machine.
    assert {one.error for one in loads.streams} <= {None, "engine_died"}
    moves = installed.moved() - before
    assert moves >= 2, "the control: some had not begun"
    begun = started(installed.one, loads.tenant)
    assert len(loads.streams) <= begun <= len(loads.streams) + moves, "by the engines' own counts"
    assert hit_rate(installed.two, repeating, FEW) >= rate - 0.02


async def cut_off(installed: Installation, loads: BothLoads, link: ProxiedLink) -> None:
    running = await loads.until_waits_in(link)
    await asyncio.sleep(0.2)
    link.hold()
    link.cut()
    await seen(partial(installed.is_away, link), 20)
    await asyncio.gather(*running)
    link.heal()
    await seen(installed.all_ready, 30)


async def test_a_connection_that_breaks_is_a_death_and_an_engine_that_hears_nothing_is_left(
    installed: Installation, right: list[list[str]]
) -> None:
    loads, repeating = BothLoads(installed), heavy(installed.one)
    rate, before = hit_rate(installed.one, repeating, FEW), installed.moved()
    broken, deaf, slow = installed.links
    for _ in range(3):
        if not any(one.error for one in loads.streams):  # no request had begun on that engine
            await cut_off(installed, loads, broken)
    deaf.hold("toward")
    # The engine's heartbeats still arrive. A new request to this engine is moved once a ping stays
    # unanswered.
    late = await asyncio.gather(*(loads.loads[0].ask(number) for number in range(AT_ONCE)))
    assert [one.error for one in late] == [None] * AT_ONCE
    deaf.heal()
    await seen(installed.all_ready, 30)
    slow.delay_s = 0.05
    streams = await asyncio.gather(*await loads.until_waits_in(slow))
    assert [one.error for one in streams] == [None] * len(streams)
    slow.delay_s = 0.0
    await loads.close()
    expect_served_once(installed, loads, right)
    begun = {one.error for one in loads.streams if one.error is not None}
    assert begun == {"engine_died"}, "the control: some had begun"
    assert installed.moved() > before, "the control: some had not"
    assert all(floor == ceiling for floor, ceiling in shares(installed.two)), "parts, in all"
    assert max(shares(installed.two)) > (0, 0)
    assert hit_rate(installed.two, repeating, FEW) >= rate - 0.02


def test_limits_and_budgets_hold_over_all_gateways_and_engines(installed: Installation) -> None:
    limited = installed.one.new_tenant()
    limit(installed.two, requests_per_minute=6)
    assert asked(installed, limited, 10) == [200] * 6 + [429] * 4
    poor = installed.two.new_tenant()
    price = 68 * PRICES.computed + PRICES.generated  # price of one request
    limit(installed.one, budget={"units": 3.5 * price / 1e6, "period": "total"})
    assert asked(installed, poor, 10) == [200] * 3 + [429] * 7
    limit(installed.one)
    assert asked(installed, poor, 2) == [200] * 2, "the control"


def test_what_is_published_and_flushed_is_so_in_all(installed: Installation) -> None:
    text = "The harbour master keeps the ledger. " * 3
    source = {"name": "rules", "scope": "all", "text": text}
    prefix = admin(installed.one, "POST", "/admin/prefixes", json=source)
    for front in (installed.one, installed.two):
        wait_for(partial(is_warm, front, prefix["id"]), WITHIN_S)
    strangers = [installed.one.new_tenant() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(partial(found_by, installed.two, text + "Then"), strangers))
    assert all(tokens >= prefix["tokens"] // 16 * 16 > 0 for tokens in found), found

    key, other = heavy(installed.one), heavy(installed.two)
    for one in (key, other):
        hit_rate(installed.one, one)
        hit_rate(installed.two, one)
    flushed = flush(installed.two, newest(installed.one))
    assert flushed["flushed_blocks"] > 0
    assert flushed["awaited"] == []
    assert [cached(installed.one, n, other) for n in range(PROMPTS)] == [0] * PROMPTS
    assert min(cached(installed.one, n, key) for n in range(PROMPTS)) >= 64, "the control"


PAIRED_ONLY = ("--tiers", "device", "--samples", "0", "--eviction-trials", "0")
LONG = ("--within-s", "600")  # enough time even if other tests run at the same time


def test_tenants_stay_apart_behind_a_router(installed: Installation) -> None:
    """`test_verify_isolation.py` compares times and tests prompt modules, on one server.

    Findings about prompt modules do not count here, since modules may not fit a tenant's partition.
    """
    delete_tenants(installed.one)  # their partitions would leave new tenants little cache
    record = verified(installed.two, *PAIRED_ONLY, *LONG)
    findings = [f for f in record["findings"] if f["dimension"] != "module"]
    assert len([f for f in findings if f["tier"] == "device"]) >= len(CASES)
    assert {f["outcome"] for f in findings if f["tier"] == "device"} == {"passed", "allowed"}
    assert all(f["control_full"] for f in findings if f["tier"] == "device")
    assert not any(f["outcome"] == "leaks" for f in record["findings"])
    # Positive control: the command finds the leak of a gateway that shares all caches, with the
    # same engines.
    with installed.machines.gateway("gateway-3", "--share-all") as open_to_all:
        wait_for(lambda: states(open_to_all) == states(installed.one), WITHIN_S)
        assert verified(open_to_all, *PAIRED_ONLY)["verdict"] == "leaks"


@pytest.mark.zoo
def test_behind_a_router_no_tenant_is_counted_by_what_is_evicted(installed: Installation) -> None:
    """`hostile/test_prime_and_probe.py` tests the same attack on one server."""
    delete_tenants(installed.one)
    without_others = ("--tiers", "device", "--samples", "0")
    record = verified(installed.two, *without_others, "--eviction-trials", "2", *LONG)
    assert record["eviction"]["across"]["trials"] == 20
    across, control = (record["eviction"][name] for name in ("across", "control"))
    assert across["bits"] < CONTROL_BITS
    # The control's bits are not compared: several routes give more different readings, which lowers
    # the estimate of bits.
    assert control["readings"] >= len(LEVELS), "the control: a leak would have been seen"


async def test_an_engine_that_was_away_forgets_what_was_flushed(installed: Installation) -> None:
    back, *others = installed.machines.engines
    for machine in others:
        installed.machines.stop(machine)
    kept, gone = heavy(installed.one), heavy(installed.one)
    for key in (gone, kept):
        hit_rate(installed.one, key)
        assert most_cached(installed.one, key) >= 64
    installed.machines.stop(back)
    wait_for(lambda: states(installed.one) == states(installed.two) == {}, WITHIN_S)
    assert flush(installed.two, newest(installed.one)) == {"flushed_blocks": 0, "awaited": []}
    installed.machines.start(back)
    wait_for(partial(is_in, installed.one, back.link.name, "ready"), WITHIN_S)
    assert most_cached(installed.one, gone) == 0
    assert most_cached(installed.one, kept) >= 64, "the control: its disk is as it was"
    wait_for(partial(has_noted, installed.machines.disk(back)), 20)
