"""Charges that a gateway sends to Redis again, after no answer came, count once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from gateway.limits.guarded import GuardedLimiter
from gateway.limits.limiter import Amount, Demand, Granted, Hold
from gateway.limits.token_bucket import ONE
from gateway.state.redis.link import Breaker, RedisLink, connect
from gateway.tenant_limits import Limits
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.gateway.limits.homes import MANUAL_CLOCK, LoneLimiter, RedisClock
from tests.gateway.support.manual_clock import ManualClock

TOKENS = Limits(tokens_per_minute=600)
USED = 100
PATIENCE_S = 20.0


class Gateway:
    """A gateway's limiter with a real Redis whose clock does not move."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.clock = RedisClock(server)
        self.time = ManualClock()
        self.link = RedisLink(connect(server.url), Breaker(self.time), timeout_s=PATIENCE_S)
        self.limiter = GuardedLimiter(LoneLimiter(self.link, clock=MANUAL_CLOCK), replicas=1)

    async def hold(self, name: str) -> Hold:
        verdict = await self.limiter.reserve(Demand(name, "tn_a", TOKENS, Amount()))
        assert isinstance(verdict, Granted)
        return verdict.hold

    async def settled(self) -> int:
        """Wait until everything is sent; return the tokens that Redis has counted."""
        await self.hold("last")
        while self.limiter._uncharged:
            await self.limiter.renew([])
            await asyncio.sleep(0.01)
        with redis.Redis(port=self.server.port) as client:
            level = client.hget("ratoon:limits:{tn_a}:tokens", "level")
        return int(level or 0) // ONE


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    with redis_server(tmp_path) as server:
        gateway = Gateway(server)
        await gateway.hold("first")  # loads the reservation's script into Redis
        yield gateway
        await gateway.limiter.close()
        gateway.clock.close()


async def test_what_is_owed_counts_once_though_the_request_that_told_it_left(
    gateway: Gateway,
) -> None:
    gateway.limiter._owe("tn_a", tokens=USED)
    gateway.server.freeze()
    asking = asyncio.create_task(gateway.hold("left"))
    await asyncio.sleep(0.1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    gateway.server.thaw()
    assert await gateway.settled() == USED


@pytest.mark.parametrize("is_asked", [True, False])
async def test_what_was_used_counts_once_though_redis_has_not_said_so(
    gateway: Gateway, is_asked: bool
) -> None:
    held = await gateway.hold("a")
    # loads the charge's script too
    await gateway.limiter.charge(await gateway.hold("b"), Amount(tokens=7))
    gateway.link.timeout_s = 0.1
    gateway.server.freeze()
    if not is_asked:
        while not gateway.link._breaker.is_open:
            await gateway.limiter.renew([held])
    await gateway.limiter.charge(held, Amount(tokens=USED))
    gateway.server.thaw()
    gateway.link.timeout_s = PATIENCE_S
    gateway.time.advance(2)
    assert await gateway.settled() == USED + 7


async def test_a_long_outage_makes_few_names(gateway: Gateway) -> None:
    gateway.link.timeout_s = 0.01
    gateway.server.freeze()
    for number in range(200):
        await gateway.hold(f"{number}")
    assert len(gateway.limiter._owed["tn_a"]) <= 10, "no more than Redis was asked"
    gateway.server.thaw()
    gateway.link.timeout_s = PATIENCE_S
    gateway.time.advance(2)
    await gateway.hold("after")
    assert not gateway.limiter._owed
