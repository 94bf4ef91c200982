"""Rows 5 to 8 of docs/faults.md: a real Redis that is down, slow, frozen, emptied, full, or
read-only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace

from gateway.errors import StateDiskFull, Unavailable
from gateway.limits.guarded import GuardedLimiter
from gateway.limits.limiter import Amount, Demand, Denied, Granted
from gateway.limits.memory import MemoryLimiter
from gateway.state.redis.link import Breaker, RedisLink, connect
from gateway.tenant_limits import Budget, Limits
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.gateway.limits.homes import LoneLimiter
from tests.gateway.support.manual_clock import ManualClock

RATE = Limits(requests_per_minute=60 * 100, burst_s=0.2)  # 100 requests per second, 20 at once


def _limiter(server: RedisServer, breaker: Breaker) -> LoneLimiter:
    """Make a limiter with a longer time-out than in service, since the test machine may be busy."""
    return LoneLimiter(RedisLink(connect(server.url, timeout_s=0.25), breaker, timeout_s=0.25))


class Pair:
    """The limiters of two gateways over one Redis."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.clock = ManualClock()
        self.breakers = [Breaker(time.monotonic, probe_after_s=0.05) for _ in range(2)]
        self.limiters = [
            GuardedLimiter(_limiter(server, breaker), replicas=2) for breaker in self.breakers
        ]
        self._sent = 0

    async def ask(self, limits: Limits, which: int = 0, most: Amount | None = None) -> bool:
        """Send one request, and settle it at once; return whether it was admitted."""
        self._sent += 1
        asked = Demand(f"r{self._sent}", "tn_a", limits, most or Amount())
        verdict = await self.limiters[which].reserve(asked)
        if isinstance(verdict, Denied):
            return False
        await self.limiters[which].charge(verdict.hold, asked.most)
        return True

    async def load(self, seconds: float, at_half: Callable[[], object]) -> tuple[int, float]:
        """Send requests through both gateways, and cause a fault halfway.

        Return the number of admitted requests, and the seconds they took.
        """
        began, admitted, happened = time.monotonic(), 0, False
        while (passed := time.monotonic() - began) < seconds:
            if passed > seconds / 2 and not happened:
                happened = True
                at_half()
            answers = await asyncio.gather(*(self.ask(RATE, which) for which in (0, 1, 0, 1)))
            admitted += sum(answers)
            await asyncio.sleep(0.004)  # several hundred requests a second are enough
        return admitted, time.monotonic() - began


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    with redis_server(tmp_path) as server:
        pair = Pair(server)
        yield pair
        for limiter in pair.limiters:
            await limiter.close()


def call(pair: Pair, *words: str) -> Callable[[], object]:
    def now() -> None:
        with redis.Redis(port=pair.server.port) as client:
            client.execute_command(*words)

    return now


def fault(pair: Pair, name: str) -> Callable[[], object]:
    return {
        "killed": pair.server.kill,
        "frozen": pair.server.freeze,
        "slow": call(pair, "CLIENT", "PAUSE", "300", "ALL"),
        "read-only": call(pair, "REPLICAOF", "127.0.0.1", "1"),
        "full": call(pair, "CONFIG", "SET", "maxmemory", "1"),
        "emptied": call(pair, "FLUSHALL"),
        "scripts forgotten": call(pair, "SCRIPT", "FLUSH"),
    }[name]


@pytest.mark.parametrize(
    "name", ["killed", "frozen", "slow", "read-only", "full", "emptied", "scripts forgotten"]
)
async def test_no_fault_lets_more_in_than_the_rate_and_a_burst_more(pair: Pair, name: str) -> None:
    admitted, lasted = await pair.load(1.0, fault(pair, name))
    limit = 100 * lasted + 20
    extra = 20 if name == "emptied" else 0.1 * limit
    assert admitted <= limit + extra
    assert admitted > 20  # positive control: some requests are admitted


@pytest.mark.parametrize("name", ["killed", "frozen", "read-only", "full"])
async def test_a_budget_fails_closed(pair: Pair, name: str) -> None:
    limits = Limits(budget=Budget(units=1.0), requests_per_minute=100)
    assert await pair.ask(limits)
    fault(pair, name)()
    for _ in range(8):
        with pytest.raises(Unavailable) as refusal:
            await pair.ask(limits)
        assert isinstance(refusal.value, StateDiskFull) == (name == "full")
    assert await pair.ask(Limits(requests_per_minute=100))  # requests without a budget are served


async def test_the_breaker_leaves_a_dead_redis_alone(pair: Pair) -> None:
    pair.server.freeze()
    breaker = pair.breakers[0]
    for number in range(5):
        assert not breaker.is_open, number
        await pair.ask(RATE)
    assert breaker.is_open


async def test_redis_comes_back_and_hears_of_what_was_admitted(pair: Pair) -> None:
    slow = Limits(requests_per_minute=20)
    assert await pair.ask(slow)
    pair.server.freeze()
    alone = [await pair.ask(slow) for _ in range(12)]
    assert sum(alone) == 9  # it may admit 10, half of the rate, and admitted one before
    pair.server.thaw()
    await back(pair)
    others = [await pair.ask(slow, which=1) for _ in range(20)]
    # perhaps without the probe, and without 5 requests that Redis executed when it thawed
    left = 20 - 1 - 9
    assert left - 6 <= sum(others) <= left


async def back(pair: Pair) -> None:
    """Wait until the first limiter is answered by Redis again."""
    probe = Limits(requests_per_minute=20)
    for number in range(200):
        asked = Demand(f"probe{number}", "tn_a", probe, Amount())
        await pair.limiters[0].reserve(asked)
        if not pair.breakers[0].is_open:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come back")


async def test_what_ended_while_redis_was_away_is_settled_later(pair: Pair) -> None:
    limits = Limits(max_concurrent=1, budget=Budget(units=1.0))
    one = pair.limiters[0]
    held = await one.reserve(Demand("a", "tn_b", limits, Amount(cost=900_000)))
    assert isinstance(held, Granted)
    pair.server.freeze()
    await one.charge(held.hold, Amount(cost=100_000))
    pair.server.thaw()
    await until_admitted(pair, Demand("b", "tn_b", limits, Amount(cost=900_000)))


@pytest.mark.parametrize("is_asked", [True, False])
async def test_redis_goes_down_between_the_two_phases_of_a_reservation(
    pair: Pair, is_asked: bool
) -> None:
    limits = Limits(max_concurrent=1)
    # a budget, so that only Redis decides
    of_other = Limits(max_concurrent=1, budget=Budget(units=1.0))
    one = pair.limiters[0]
    begun = Demand("a", "tn_b", limits, Amount())
    assert isinstance(await one.reserve(begun), Granted)
    pair.server.freeze()
    while not is_asked and not pair.breakers[0].is_open:
        await pair.ask(RATE)
    held = await one.reserve(replace(begun, most=Amount(tokens=200), begun=begun.most))
    assert isinstance(held, Granted)  # only this gateway granted the request
    await one.charge(held.hold, Amount(tokens=100))
    pair.server.thaw()
    early = await decided(pair, Demand("early", "tn_b", of_other, Amount()))
    assert isinstance(early, Denied)  # Redis does not know that the request has ended
    await until_admitted(pair, Demand("b", "tn_b", of_other, Amount()))


async def decided(pair: Pair, asked: Demand) -> Granted | Denied:
    """Return Redis's answer to the other gateway, as soon as Redis answers."""
    for _ in range(200):
        try:
            return await pair.limiters[1].reserve(asked)
        except Unavailable:
            await asyncio.sleep(0.01)
    raise AssertionError("it did not come back")


async def until_admitted(pair: Pair, asked: Demand) -> None:
    """Wait until the other gateway's request is admitted, after the first gateway settled with
    Redis.
    """
    for number in range(200):
        await pair.limiters[0].renew([])  # the gateway renews from time to time
        if isinstance(await decided(pair, replace(asked, id=f"{asked.id}{number}")), Granted):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the hold was never given back")


async def test_a_share_is_at_least_one_of_everything(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        shared = LoneLimiter(RedisLink(connect(server.url)))
    guarded = GuardedLimiter(shared, replicas=64, alone=MemoryLimiter())
    limits = Limits(requests_per_minute=3, max_concurrent=2)
    verdicts = [
        await guarded.reserve(Demand(f"r{number}", "tn_a", limits, Amount())) for number in range(3)
    ]
    assert [type(verdict) for verdict in verdicts] == [Granted, Denied, Denied]
    await guarded.close()
