"""Large records in a real Redis never keep Redis from serving other tenants."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.errors import StateDiskFull, Unavailable
from gateway.limits.limiter import Amount, Demand, Granted
from gateway.limits.redis import RedisLimiter
from gateway.state.records import PrefixSource, PublishedPrefix, ResponseRoom, StoredResponse
from gateway.state.redis.link import FAILURES, Breaker, RedisLink, connect
from gateway.state.redis.store import RedisStore
from gateway.tenant_limits import Budget, Limits
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.gateway.state.contract import a_prefix, a_response, a_tenant
from tests.gateway.support.manual_clock import ManualClock

TEXT = "A" * 2_000_000  # the largest allowed text of a stored response
ROOM = ResponseRoom(of_one=4 << 20, of_tenant=64 << 20, of_all=128 << 20)
MINE, HERS = a_tenant("mine"), a_tenant("hers")
LIMITS = Limits(budget=Budget(units=1000.0), requests_per_minute=100_000)


@dataclass
class Site:
    """A gateway's state and limits in a Redis, in which each tenant has a large response."""

    server: RedisServer
    clock: ManualClock
    breaker: Breaker
    link: RedisLink
    store: RedisStore
    limiter: RedisLimiter
    numbers: itertools.count[int]

    async def read(self, tenant_id: str = MINE.id) -> StoredResponse:
        return await self.store.find_response(tenant_id, "resp_1", now=1.0)

    async def write(self) -> None:
        await self.store.keep_response(a_response(MINE, next(self.numbers), TEXT), ROOM)

    async def publish(self) -> None:
        number = next(self.numbers)
        prefix = replace(a_prefix(), id=f"px_{number}", version=number)
        await self.store.create(replace(prefix, source=PrefixSource(text=TEXT)))

    async def every(self) -> None:
        await self.store.every(PublishedPrefix)

    async def serves(self) -> None:
        """Check that another tenant's request is admitted, and that its key is found."""
        demand = Demand(f"r{next(self.numbers)}", HERS.id, LIMITS, Amount())
        verdict = await self.limiter.reserve(demand)
        assert isinstance(verdict, Granted)
        await self.limiter.charge(verdict.hold, Amount())
        assert await self.store.find_by_digest(b"unknown") is None
        assert not self.breaker.is_open


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    with redis_server(tmp_path) as server:
        clock = ManualClock()
        breaker = Breaker(clock)
        link = RedisLink(connect(server.url), breaker, timeout_s=0.5)
        store = RedisStore(link)
        numbers = itertools.count(2)
        site = Site(server, clock, breaker, link, store, RedisLimiter(link), numbers)
        for tenant in (MINE, HERS):
            await store.create(tenant)
            await store.keep_response(a_response(tenant, 1, TEXT), ROOM)
        await site.publish()
        yield site
        await store.close()


@pytest.mark.parametrize("attempt", [Site.read, Site.write, Site.publish, Site.every])
async def test_what_does_not_cross_fails_alone(
    site: Site, attempt: Callable[[Site], Awaitable[object]]
) -> None:
    await attempt(site)  # positive control: without the limits, Redis accepts the record
    bounds = {"client-output-buffer-limit": "normal 65536 0 0", "client-query-buffer-limit": "1mb"}
    for name, value in bounds.items():  # Redis now disconnects clients that receive or send more
        await site.link.command("CONFIG", "SET", name, value)
    for _ in range(2 * FAILURES):
        with pytest.raises(Unavailable) as caught:
            await attempt(site)
        assert (caught.value.status, caught.value.code) == (503, "state_unavailable")
        assert caught.value.retry_after_s
    await site.serves()
    await site.link.command("CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0")
    await site.link.command("CONFIG", "SET", "client-query-buffer-limit", "1gb")
    await attempt(site)


async def test_others_are_served_while_a_tenant_moves_large_records(site: Site) -> None:
    async def move() -> None:
        for _ in range(4):
            assert await site.read() == a_response(MINE, 1, TEXT)
            await site.write()

    moving = asyncio.gather(*(move() for _ in range(8)))
    while not moving.done():
        await site.serves()
    await moving


async def test_no_tenant_waits_behind_another_s_many(site: Site) -> None:
    served: list[str] = []

    async def read(tenant_id: str) -> None:
        await site.read(tenant_id)
        served.append(tenant_id)

    async with asyncio.TaskGroup() as tasks:
        for tenant_id in [MINE.id] * 20 + [HERS.id]:
            tasks.create_task(read(tenant_id))
    assert served.index(HERS.id) < 4


async def test_a_frozen_redis_is_noticed_by_large_calls_too(site: Site) -> None:
    site.server.freeze()
    for _ in range(FAILURES):
        with pytest.raises(Unavailable):
            await site.every()
    assert site.breaker.is_open
    for attempt in (site.read, site.write, site.every, site.serves):
        with pytest.raises(Unavailable):
            await attempt()
    site.server.thaw()
    site.clock.advance(1.0)
    await site.every()
    assert not site.breaker.is_open
    assert await site.read() == a_response(MINE, 1, TEXT)


async def test_a_large_change_that_a_full_redis_refuses_is_a_fault(site: Site) -> None:
    await site.link.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StateDiskFull):
        await site.publish()
    assert site.store.link.fault is not None
    await site.link.command("CONFIG", "SET", "maxmemory", "0")
    await site.store.link.check()
    assert site.store.link.fault is None
    await site.publish()
