"""Limits in a real Redis hold for many clients, and after Redis has lost scripts or data.

Redis's own clock gives the times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from gateway.errors import Unavailable
from gateway.limits.limiter import Amount, Demand, Denied, Granted
from gateway.limits.redis import Owed, RedisLimiter
from gateway.state.redis.link import RedisLink, connect
from gateway.tenant_limits import MICRO, Budget, Limits
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.gateway.limits.homes import LoneLimiter, patient

UNITS = Limits(budget=Budget(units=1.0))


@pytest.fixture
def admin(limits_redis: RedisServer) -> redis.Redis:
    client: redis.Redis = redis.Redis(port=limits_redis.port, decode_responses=True)
    client.flushall()
    return client


@pytest.fixture
async def limiter(limits_redis: RedisServer, admin: redis.Redis) -> AsyncIterator[RedisLimiter]:
    limiter = patient(limits_redis)
    yield limiter
    await limiter.close()
    admin.close()


def demand(name: object, limits: Limits, cost: float = 0) -> Demand:
    return Demand(str(name), "tn_a", limits, Amount(cost=int(cost * MICRO)))


async def test_8_clients_on_two_limiters_get_the_rate_and_one_burst(
    limits_redis: RedisServer, limiter: RedisLimiter
) -> None:
    # 100 requests per second, 50 at once
    limits = Limits(requests_per_minute=60 * 100, burst_s=0.5)
    other = patient(limits_redis)
    began = time.monotonic()

    async def client(number: int) -> int:
        admitted = sent = 0
        while time.monotonic() - began < 1.5:
            asked = demand(f"{number}-{sent}", limits)
            verdict = await (limiter, other)[number % 2].reserve(asked)
            admitted += isinstance(verdict, Granted)
            sent += 1
        return admitted

    admitted = sum(await asyncio.gather(*(client(number) for number in range(8))))
    lasted = time.monotonic() - began
    assert admitted <= 100 * lasted + 50
    assert admitted > 50
    await other.close()


async def test_there_is_one_key_for_each_limit_and_no_id_of_a_key(
    limiter: RedisLimiter, admin: redis.Redis
) -> None:
    limits = Limits(requests_per_minute=60, tokens_per_minute=600, budget=Budget(units=1.0))
    await limiter.reserve(demand("a", limits))
    assert sorted(admin.scan_iter()) == [
        f"ratoon:limits:{{tn_a}}:{name}" for name in ("holds", "month", "requests", "tokens")
    ]
    assert admin.pttl("ratoon:limits:{tn_a}:month") == -1  # the spent amount never expires


async def test_rates_are_forgotten_once_they_have_drained_and_nothing_is_held(
    limiter: RedisLimiter, admin: redis.Redis
) -> None:
    def kept_s(name: str) -> float:
        return int(str(admin.pttl(f"ratoon:limits:{{tn_a}}:{name}"))) / 1000

    limits = Limits(requests_per_minute=1, tokens_per_minute=60, burst_s=7200)
    granted = [await limiter.reserve(demand(number, limits)) for number in range(100)]
    assert 6000 - 60 < kept_s("requests") <= 6000  # 100 requests at one per minute
    for number, one in enumerate(granted):
        assert isinstance(one, Granted)
        assert kept_s("holds") == kept_s("tokens") == -0.001, f"{number}: some are held"
        await limiter.renew([one.hold])
        await limiter.charge(one.hold, Amount(150 if number else 0))
    assert 14_850 - 60 < kept_s("tokens") <= 14_850  # 99 * 150 tokens at one per second
    assert not admin.exists("ratoon:limits:{tn_a}:holds")
    admin.delete("ratoon:limits:{tn_a}:tokens")
    few = await limiter.reserve(demand("few", limits))
    assert isinstance(few, Granted)
    await limiter.charge(few.hold, Amount(1))
    assert 3540 < kept_s("tokens") <= 3600


async def test_what_ran_when_all_gateways_died_is_let_go_however_late(
    limiter: RedisLimiter, admin: redis.Redis
) -> None:
    limits = Limits(tokens_per_minute=100, budget=Budget(units=1.0))
    asked = Demand("died", "tn_a", limits, Amount(tokens=80, cost=300_000))
    assert isinstance(await limiter.reserve(asked), Granted)
    for name in ("holds", "tokens", "requests"):
        if int(str(admin.pttl(f"ratoon:limits:{{tn_a}}:{name}"))) > 0:
            admin.delete(f"ratoon:limits:{{tn_a}}:{name}")  # as if it had expired
    for member in map(str, admin.zrange("ratoon:limits:{tn_a}:holds", 0, -1)):
        admin.zadd("ratoon:limits:{tn_a}:holds", {member: 1})  # as if the hold's minute had passed
    assert isinstance(await limiter.reserve(demand("next", limits)), Granted)
    month = admin.hgetall("ratoon:limits:{tn_a}:month")
    assert isinstance(month, dict)
    assert (month["held"], month["spent"]) == ("0", "300000")


async def test_forgotten_scripts_are_loaded_again(
    limiter: RedisLimiter, admin: redis.Redis
) -> None:
    for number in range(3):
        verdict = await limiter.reserve(demand(number, UNITS))
        assert isinstance(verdict, Granted)
        admin.script_flush()
        await limiter.charge(verdict.hold, Amount())
        admin.script_flush()


async def test_an_emptied_redis_gives_one_burst_back(
    limiter: RedisLimiter, admin: redis.Redis
) -> None:
    limits = Limits(requests_per_minute=5, max_concurrent=100)
    admitted = 0
    for round_number in range(2):
        for number in range(20):
            verdict = await limiter.reserve(demand(f"{round_number}-{number}", limits))
            admitted += isinstance(verdict, Granted)
        if not round_number:
            admin.flushall()
    assert admitted == 10


async def test_an_emptied_redis_does_not_give_the_budget_back(
    limits_redis: RedisServer, limiter: RedisLimiter, admin: redis.Redis
) -> None:
    other = patient(limits_redis)
    first = await limiter.reserve(demand("a", UNITS, 0.4))
    assert isinstance(first, Granted)
    await limiter.charge(first.hold, Amount(cost=400_000))
    second = await other.reserve(demand("b", UNITS, 0.3))
    assert isinstance(second, Granted)
    assert isinstance(await limiter.reserve(demand("c", UNITS, 0.4)), Denied)
    admin.flushall()
    # the second hold is gone, but its usage is counted
    await other.charge(second.hold, Amount(cost=300_000))
    assert admin.hget("ratoon:limits:{tn_a}:month", "spent") == "300000"
    verdict = await limiter.reserve(demand("d", UNITS, 0.7))
    assert isinstance(verdict, Denied)
    assert isinstance(await other.reserve(demand("e", UNITS, 0.3)), Granted)
    await other.close()


async def test_a_replica_that_lagged_does_not_give_the_budget_back(
    limiter: RedisLimiter, admin: redis.Redis
) -> None:
    """Do not give a budget back after a failover.

    The replica that takes over has an old count, under the same epoch.
    """
    month = "ratoon:limits:{tn_a}:month"
    first = await limiter.reserve(demand("a", UNITS, 0.3))
    assert isinstance(first, Granted)
    await limiter.charge(first.hold, Amount(cost=300_000))
    assert admin.hget(month, "spent") == "300000"
    second = await limiter.reserve(demand("b", UNITS, 0.4))
    assert isinstance(second, Granted)
    await limiter.charge(second.hold, Amount(cost=400_000))
    assert isinstance(await limiter.reserve(demand("sees it", UNITS)), Granted)
    admin.hset(month, "spent", "300000")
    assert isinstance(await limiter.reserve(demand("c", UNITS, 0.4)), Denied)
    assert admin.hget(month, "spent") == "700000", "and other gateways find it"
    assert isinstance(await limiter.reserve(demand("d", UNITS, 0.3)), Granted), "the control"


async def test_what_was_owed_is_counted_once(limiter: RedisLimiter) -> None:
    limits = Limits(requests_per_minute=10)
    verdict = await limiter.reserve_owing(demand("a", limits), [Owed("a", requests=7)])
    assert isinstance(verdict, Granted)
    assert verdict.standing.requests is not None
    assert verdict.standing.requests.remaining == 2
    verdict = await limiter.reserve_owing(demand("b", limits), [Owed("a", requests=7)])
    assert isinstance(verdict, Granted)
    again = await limiter.reserve_owing(demand("c", limits), [Owed("b", requests=100)])
    assert isinstance(again, Denied)  # still at its limit, but not locked for ever
    assert again.retry_after_s is not None
    assert again.retry_after_s <= 6.1


async def test_names_of_debts_are_kept_while_a_gateway_may_tell_them_again(
    limiter: RedisLimiter, admin: redis.Redis
) -> None:
    """Keep the names of debts as long as a gateway may send them again.

    A debt that Redis may have counted is sent again with its tenant's next request.
    """
    limits = Limits(requests_per_minute=10)
    await limiter.reserve_owing(demand("a", limits), [Owed("a", requests=7)])
    names, rates = (f"ratoon:limits:{{tn_a}}:{name}" for name in ("owed", "requests"))
    day_ms = 24 * 3600 * 1000
    assert admin.pttl(names) > 6 * day_ms
    assert 0 < admin.pttl(rates) < day_ms, "the control: rates have drained by then"


async def test_a_frozen_redis_is_given_up_in_time(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        limiter = LoneLimiter(RedisLink(connect(server.url)))
        await limiter.reserve(demand("a", UNITS))
        server.freeze()
        with pytest.raises(Unavailable):
            await limiter.reserve(demand("b", UNITS))
        server.thaw()
        assert isinstance(await _when_up(limiter, demand("c", UNITS)), Granted)
        await limiter.close()


async def test_no_server_is_limiter_down(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        limiter = LoneLimiter(RedisLink(connect(server.url)))
    for number in range(2):
        with pytest.raises(Unavailable):
            await limiter.reserve(demand(number, UNITS))
    await limiter.close()


async def _when_up(limiter: RedisLimiter, asked: Demand) -> object:
    for _ in range(100):
        try:
            return await limiter.reserve(asked)
        except Unavailable:
            await asyncio.sleep(0.01)
    raise AssertionError("it did not come back")
