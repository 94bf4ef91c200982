"""Three engines over networks that fail, before two gateways on one Redis, under load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.options.gateway_options import PRICES
from storage.disk.file.done_flushes import read_done
from tests.cli.console import Console
from tests.doubles.gateway.redis_server import redis_server
from tests.doubles.replicas.proxied_link import ProxiedLink
from tests.doubles.waiting import until, wait_for
from tests.seams.support.machines import Machines, machines
from tests.seams.support.replica_load import (
    AT_ONCE,
    PROMPTS,
    TOKENS,
    WITHIN_S,
    Load,
    Stream,
    body,
    cached,
    has_ended,
    hit_rate,
    is_in,
    lost,
    moved,
    states,
    used,
    wrong,
)
from tests.seams.support.server import Front


@dataclass
class Installation:
    """Both gateways, and the engines behind them."""

    machines: Machines
    one: Front
    two: Front

    @property
    def links(self) -> list[ProxiedLink]:
        return [one.link for one in self.machines.engines]

    def all_ready(self) -> bool:
        wanted = {link.name: "ready" for link in self.links}
        return states(self.one) == states(self.two) == wanted

    def is_away(self, link: ProxiedLink, state: str = "stalled") -> bool:
        return is_in(self.one, link.name, state) and is_in(self.two, link.name, state)

    def moved(self) -> float:
        return moved(self.one) + moved(self.two)


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
    """What each prompt gives, one after the other."""
    with installed.one.client() as client:
        answers = [client.post("/v1/completions", json=body(n, TOKENS)) for n in range(PROMPTS)]
    return [one.json()["choices"][0]["logprobs"]["tokens"] for one in answers]


def admin(front: Front, method: str, path: str, **sent: Any) -> Any:
    with front.client(front.admin_key) as client:
        answer = client.request(method, path, **sent)
        answer.raise_for_status()
        return answer.json()


def newest(front: Front) -> str:
    """The id of the tenant that was made last."""
    found: str = admin(front, "GET", "/admin/tenants")["tenants"][-1]["id"]
    return found


def limit(front: Front, **limits: Any) -> None:
    """Of the tenant that was made last."""
    admin(front, "PATCH", f"/admin/tenants/{newest(front)}", json={"limits": limits})


def asked(installed: Installation, key: str, count: int, **more: Any) -> list[int]:
    """The statuses of so many requests, through one gateway and the other in turn."""
    with installed.one.client(key) as one, installed.two.client(key) as two:
        return [
            (one, two)[n % 2].post("/v1/completions", json=body(n, 1) | more).status_code
            for n in range(count)
        ]


def is_warm(front: Front, prefix_id: str) -> bool:
    return bool(admin(front, "GET", f"/admin/prefixes/{prefix_id}")["state"] == "warm")


def found_by(front: Front, text: str, key: str) -> int:
    """Cached tokens of a request with this text."""
    asked = {"model": "tiny", "prompt": text, "max_tokens": 1}
    with front.client(key) as client:
        usage = client.post("/v1/completions", json=asked).json()["usage"]
    tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    return tokens


def flush(front: Front, tenant: str) -> Any:
    return admin(front, "POST", "/admin/cache/flush", json={"tenant": tenant})


def held(front: Front) -> dict[str, int]:
    """Blocks of each tenant, on whatever tier."""
    return {
        one["id"]: sum(tier["held"] for tier in one["tiers"].values())
        for one in front.stats()["tenants"]
    }


def verified(front: Front, *words: str) -> Any:
    target = ("--url", front.url, "--admin-key", front.admin_key, "--quick", "--json")
    return Console().type("verify-isolation", *target, *words).json


def most_cached(front: Front, key: str) -> int:
    """Tokens of the prompt of which most is cached; nothing changes."""
    return max(cached(front, number, key) for number in range(PROMPTS))


def has_noted(disk: Path) -> bool:
    """Whether an engine remembers for its next start that it has done a flush."""
    return bool(read_done(disk))


class BothLoads:
    """Streams of one tenant through both gateways."""

    def __init__(self, installed: Installation) -> None:
        self.key = installed.one.new_tenant()
        self.loads = [Load(front, self.key) for front in (installed.one, installed.two)]

    @property
    def streams(self) -> list[Stream]:
        return [stream for load in self.loads for stream in load.streams]

    async def until_waits_in(self, link: ProxiedLink) -> list[asyncio.Task[Stream]]:
        more = [asyncio.create_task(self.loads[1].ask(n)) for n in range(AT_ONCE // 2)]
        return [*more, *await self.loads[0].until_waits_in(link.name)]

    async def close(self) -> None:
        for load in self.loads:
            await load.close()


def expect_served_once(installed: Installation, loads: BothLoads, right: list[list[str]]) -> None:
    """Nothing lost or wrong, and what is charged is what was sent."""
    streams = loads.streams
    assert wrong(streams, right) == []
    assert lost(streams) == []
    wait_for(lambda: used(installed.two, loads.key)["requests"] == len(streams), 20)
    generated = used(installed.two, loads.key)["generated_tokens"]
    assert generated == sum(len(one.tokens) for one in streams)


async def test_what_a_network_holds_back_moves_or_waits_and_is_served_once(
    installed: Installation, right: list[list[str]]
) -> None:
    loads, repeating, before = BothLoads(installed), installed.one.new_tenant(), installed.moved()
    rate = hit_rate(installed.one, repeating)
    assert rate > 0.5
    for link, directions in zip(installed.links, [(), ("back",), ()], strict=True):
        running = await loads.until_waits_in(link)
        link.hold(*directions)
        try:
            await until(partial(installed.is_away, link), 20)
            assert installed.one.is_ready(), "the others serve"
            # At most those go on waiting that it had begun: two run at once.
            await until(partial(has_ended, running, len(running) - 2), WITHIN_S)
        finally:
            link.heal()
        await asyncio.gather(*running)
        await until(installed.all_ready, 20)
    await loads.close()
    expect_served_once(installed, loads, right)
    assert {one.error for one in loads.streams} == {None}
    assert installed.moved() - before >= 3, "the control: some had not begun"
    assert hit_rate(installed.two, repeating) >= rate - 0.02


async def test_a_connection_that_breaks_is_a_death_and_an_engine_that_hears_nothing_is_left(
    installed: Installation, right: list[list[str]]
) -> None:
    loads, repeating = BothLoads(installed), installed.one.new_tenant()
    rate, before = hit_rate(installed.one, repeating), installed.moved()
    broken, deaf, slow = installed.links
    running = await loads.until_waits_in(broken)
    broken.hold()
    broken.cut()
    await until(partial(installed.is_away, broken, "absent"), 20)
    await asyncio.gather(*running)
    broken.heal()
    deaf.hold("toward")
    # Its heartbeats come: what is sent to it now is moved when no ping has been answered.
    late = await asyncio.gather(*(loads.loads[0].ask(number) for number in range(AT_ONCE)))
    assert [one.error for one in late] == [None] * AT_ONCE
    deaf.heal()
    await until(installed.all_ready, 30)
    slow.delay_s = 0.05
    streams = await asyncio.gather(*await loads.until_waits_in(slow))
    assert [one.error for one in streams] == [None] * len(streams)
    slow.delay_s = 0.0
    await loads.close()
    expect_served_once(installed, loads, right)
    begun = {one.error for one in loads.streams if one.error is not None}
    assert begun == {"engine_died"}, "the control: some had begun"
    assert installed.moved() > before, "the control: some had not"
    assert hit_rate(installed.two, repeating) >= rate - 0.02


def test_limits_and_budgets_hold_over_all_gateways_and_engines(installed: Installation) -> None:
    limited = installed.one.new_tenant()
    limit(installed.two, requests_per_minute=6)
    assert asked(installed, limited, 10) == [200] * 6 + [429] * 4
    poor = installed.two.new_tenant()
    price = 68 * PRICES.computed + PRICES.generated  # of a request
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

    key, other = installed.one.new_tenant(), installed.two.new_tenant()
    for one in (key, other):
        hit_rate(installed.one, one)
        hit_rate(installed.two, one)
    flushed = flush(installed.two, newest(installed.one))
    assert flushed["flushed_blocks"] > 0
    assert flushed["awaited"] == []
    assert [cached(installed.one, n, other) for n in range(PROMPTS)] == [0] * PROMPTS
    assert min(cached(installed.one, n, key) for n in range(PROMPTS)) >= 64, "the control"


def test_tenants_stay_apart_behind_a_router(installed: Installation) -> None:
    few = ("--tiers", "device", "--samples", "20", "--timing-tokens", "64")
    record = verified(installed.two, *few, "--eviction-trials", "1")
    findings = record["findings"]
    assert {f["outcome"] for f in findings if f["tier"] == "device"} == {"passed", "allowed"}
    assert all(f["control_full"] for f in findings if f["tier"] == "device")
    assert record["timing"]["across"]["samples"] == 20
    assert record["eviction"]["across"]["trials"] == 10
    assert not any(f["outcome"] == "leaks" for f in findings)
    # A gateway that shares everything, before the same engines, is found out.
    with installed.machines.gateway("gateway-3", "--share-all") as open_to_all:
        wait_for(lambda: states(open_to_all) == states(installed.one), WITHIN_S)
        paired = ("--tiers", "device", "--samples", "0", "--eviction-trials", "0")
        assert verified(open_to_all, *paired)["verdict"] == "leaks"


async def test_an_engine_that_was_away_forgets_what_was_flushed(installed: Installation) -> None:
    back, *others = installed.machines.engines
    for machine in others:
        installed.machines.stop(machine)
    kept, gone = installed.one.new_tenant(), installed.one.new_tenant()
    for key in (gone, kept):
        hit_rate(installed.one, key)
        assert most_cached(installed.one, key) >= 64
    installed.machines.stop(back)
    wait_for(lambda: states(installed.one) == {}, WITHIN_S)
    assert flush(installed.two, newest(installed.one)) == {"flushed_blocks": 0, "awaited": []}
    installed.machines.start(back)
    wait_for(partial(is_in, installed.one, back.link.name, "ready"), WITHIN_S)
    assert most_cached(installed.one, gone) == 0
    assert most_cached(installed.one, kept) >= 64, "the control: its disk is as it was"
    wait_for(partial(has_noted, installed.machines.disk(back)), 20)
