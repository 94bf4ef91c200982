"""Counts in Redis and in the gateway while Redis fails and returns, on a clock that tests set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import pytest
from msgspec.structs import replace
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.limits.guarded import GuardedLimiter
from gateway.limits.limiter import HOLD_S, Amount, Demand, Denied, Granted, Hold, Verdict
from gateway.limits.memory import Clocks, MemoryLimiter
from gateway.limits.redis import Owed, RedisLimiter
from gateway.state.redis.link import FAILURES, Breaker, RedisLink, connect
from gateway.tenant_limits import Limits
from tests.gateway.support.manual_clock import ManualClock

T = TypeVar("T")

ONE_AT_ONCE = Limits(max_concurrent=1)
TOKENS = Limits(tokens_per_minute=600)
ONE_AT_ONCE_AND_TOKENS = Limits(max_concurrent=1, tokens_per_minute=600)


class Books(MemoryLimiter):
    """A limiter in memory whose holds tests can read."""

    def holds(self, hold: Hold) -> bool:
        return self._account(hold.demand.tenant_id).holds.get(hold.demand.id) is not None


class NearRedis(RedisLimiter):
    """A Redis in memory, which can be unreachable, or answer too late.

    It is reached through a link, like the real Redis.
    """

    def __init__(self, link: RedisLink, clocks: Clocks) -> None:
        super().__init__(link)
        self.link = link
        self.memory = Books(clocks)
        self.counted = set[str]()  # names of debts that Redis has counted
        self.is_away = False
        self.is_late = False
        self.settles = asyncio.Event()
        self.settles.set()
        self.answers = asyncio.Event()
        self.answers.set()

    async def reserve_owing(self, demand: Demand, owed: Sequence[Owed]) -> Verdict:
        async def work() -> Verdict:
            for name, requests, tokens in owed:
                if name not in self.counted:
                    self.memory.owe(demand.tenant_id, demand.limits, requests, tokens)
                self.counted.add(name)
            return await self.memory.reserve(demand)

        return await self._ask(work)

    async def charge(self, hold: Hold, used: Amount, *, again: bool = False) -> None:
        async def work() -> None:
            await self.settles.wait()
            if not again or self.memory.holds(hold):
                await self.memory.charge(hold, used)

        await self._ask(work)

    async def renew(self, holds: Sequence[Hold]) -> None:
        if holds:
            await self._ask(lambda: self.memory.renew(holds))

    async def admits_elsewhere(self, limits: Limits, tokens: int = 0) -> bool:
        """Return whether another gateway may begin a request now; end that request at once."""
        asked = Demand("elsewhere", "tn_a", limits, Amount(tokens=tokens))
        verdict = await self.memory.reserve(asked)
        if isinstance(verdict, Granted):
            await self.memory.charge(verdict.hold, Amount())
        return isinstance(verdict, Granted)

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        async def ask() -> T:
            if self.is_away:
                raise RedisConnectionError
            answer = await work()
            await self.answers.wait()
            if self.is_late:
                raise RedisTimeoutError
            return answer

        return await self.link.run(ask)


class Guarded:
    """A guarded limiter with its own Redis, and their clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        clocks = Clocks(self.clock, ManualClock(1e9))
        self.breaker = Breaker(self.clock)
        link = RedisLink(connect("redis://127.0.0.1:1"), self.breaker, timeout_s=10.0)
        self.redis = NearRedis(link, clocks)
        self.limiter = GuardedLimiter(self.redis, replicas=1, alone=MemoryLimiter(clocks))

    async def ask(self, name: str, limits: Limits, tokens: int = 0) -> Verdict:
        return await self.limiter.reserve(Demand(name, "tn_a", limits, Amount(tokens=tokens)))

    async def hold(self, name: str, limits: Limits, tokens: int = 0) -> Hold:
        verdict = await self.ask(name, limits, tokens)
        assert isinstance(verdict, Granted)
        return verdict.hold

    async def extend(self, hold: Hold, tokens: int) -> Hold:
        """Make the second reservation of a request, once its number of tokens is known."""
        begun = hold.demand
        more = replace(begun, most=Amount(tokens=tokens), begun=begun.most)
        verdict = await self.limiter.reserve(more)
        assert isinstance(verdict, Granted)
        return verdict.hold

    async def charged(self) -> None:
        """Renew, which begins to settle open charges with Redis, and wait until the settling
        ends.
        """
        await self.limiter.renew([])
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    guarded = Guarded()
    yield guarded
    await guarded.redis.link.close()


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("renews", [False, True])
async def test_what_is_renewed_lasts_on_wherever_it_is_held(
    guarded: Guarded, is_away: bool, renews: bool
) -> None:
    guarded.redis.is_away = is_away
    held = await guarded.hold("a", ONE_AT_ONCE)
    guarded.clock.advance(HOLD_S - 1)
    if renews:
        await guarded.limiter.renew([held])
    guarded.clock.advance(1)
    assert isinstance(await guarded.ask("b", ONE_AT_ONCE), Denied if renews else Granted)


async def test_tokens_used_while_redis_was_away_count_when_it_is_back(guarded: Guarded) -> None:
    guarded.redis.is_away = True
    held = await guarded.hold("a", TOKENS, 500)
    await guarded.limiter.charge(held, Amount(tokens=400))
    guarded.redis.is_away = False
    assert isinstance(await guarded.ask("b", TOKENS, 201), Denied)
    assert isinstance(await guarded.ask("c", TOKENS, 200), Granted)


async def test_tokens_used_before_redis_went_away_count_here(guarded: Guarded) -> None:
    held = await guarded.hold("a", TOKENS, 500)
    await guarded.limiter.charge(held, Amount(tokens=400))
    guarded.redis.is_away = True
    assert isinstance(await guarded.ask("b", TOKENS, 201), Denied)
    assert isinstance(await guarded.ask("c", TOKENS, 200), Granted)


async def test_what_redis_carried_out_too_late_is_given_back_with_the_next_request(
    guarded: Guarded,
) -> None:
    guarded.redis.is_late = True
    await guarded.limiter.charge(await guarded.hold("late", ONE_AT_ONCE), Amount())
    guarded.redis.is_late = False
    assert isinstance(await guarded.ask("b", ONE_AT_ONCE), Denied), "Redis holds the late one"
    for _ in range(5):
        await asyncio.sleep(0)  # the settling continues in the background
    assert isinstance(await guarded.ask("c", ONE_AT_ONCE), Granted)


async def test_renewals_that_fail_open_the_breaker_too(guarded: Guarded) -> None:
    """Open the breaker after failed renewals, so that a gateway with long streams does not wait at
    each.
    """
    held = await guarded.hold("a", ONE_AT_ONCE)
    guarded.redis.is_away = True
    for number in range(FAILURES):
        assert not guarded.breaker.is_open, number
        await guarded.limiter.renew([held])
    assert guarded.breaker.is_open
    guarded.redis.is_away = False
    guarded.clock.advance(1)
    await guarded.limiter.renew([held])
    assert not guarded.breaker.is_open


async def test_closing_ends_what_is_still_being_settled(guarded: Guarded) -> None:
    held = await guarded.hold("a", ONE_AT_ONCE)
    guarded.redis.is_away = True
    await guarded.limiter.charge(held, Amount())
    guarded.redis.is_away = False
    guarded.redis.settles.clear()
    await guarded.limiter.renew([])
    await asyncio.sleep(0)
    settling = [t for t in asyncio.all_tasks() if t.get_name() == "limits-catch-up"]
    assert len(settling) == 1
    await guarded.limiter.close()
    assert settling[0].cancelled()


@pytest.mark.parametrize("extends", [False, True])
async def test_what_redis_granted_to_a_request_that_left_meanwhile_is_given_back(
    guarded: Guarded, extends: bool
) -> None:
    begun = await guarded.hold("left", ONE_AT_ONCE) if extends else None
    guarded.redis.answers.clear()
    asking = guarded.extend(begun, 100) if begun else guarded.hold("left", ONE_AT_ONCE)
    task = asyncio.create_task(asking)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not await guarded.redis.admits_elsewhere(ONE_AT_ONCE), "the control: it was granted"
    task.cancel()
    guarded.redis.answers.set()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert await guarded.redis.admits_elsewhere(ONE_AT_ONCE)


@pytest.mark.parametrize("outage", ["asked in vain", "carried out too late", "not even asked"])
async def test_a_request_between_whose_phases_redis_goes_down_leaves_nothing_held(
    guarded: Guarded, outage: str
) -> None:
    """Leave no hold when Redis fails between a request's two phases.

    The request has had a hold in Redis since its first phase, or since a late second phase.
    """
    begun = await guarded.hold("a", ONE_AT_ONCE_AND_TOKENS)
    is_carried_out = outage == "carried out too late"
    guarded.redis.is_away, guarded.redis.is_late = not is_carried_out, is_carried_out
    if outage == "not even asked":
        for _ in range(FAILURES):
            await guarded.limiter.renew([begun])
        assert guarded.breaker.is_open
    held = await guarded.extend(begun, 500)
    await guarded.limiter.charge(held, Amount(tokens=400))
    # Redis does not know that the request has ended
    assert not await guarded.redis.admits_elsewhere(ONE_AT_ONCE)
    assert await guarded.redis.admits_elsewhere(TOKENS, 101) != is_carried_out
    guarded.redis.is_away = guarded.redis.is_late = False
    guarded.clock.advance(1)
    await guarded.charged()
    assert await guarded.redis.admits_elsewhere(ONE_AT_ONCE)
    assert await guarded.redis.admits_elsewhere(TOKENS, 600)
    # 400 tokens are used
    assert isinstance(await guarded.ask("b", ONE_AT_ONCE_AND_TOKENS, 221), Denied)
    assert isinstance(await guarded.ask("c", ONE_AT_ONCE_AND_TOKENS, 200), Granted)


async def test_a_request_between_whose_phases_redis_comes_back_leaves_nothing_held(
    guarded: Guarded,
) -> None:
    """Leave no hold when Redis returns between a request's two phases.

    The request began in this gateway, which alone can end its hold.
    """
    guarded.redis.is_away = True
    begun = await guarded.hold("a", ONE_AT_ONCE_AND_TOKENS)
    guarded.redis.is_away = False
    held = await guarded.extend(begun, 500)
    await guarded.limiter.charge(held, Amount(tokens=400))
    await guarded.charged()
    guarded.redis.is_away = True
    # 400 tokens are used
    assert isinstance(await guarded.ask("b", ONE_AT_ONCE_AND_TOKENS, 201), Denied)
    assert isinstance(await guarded.ask("c", ONE_AT_ONCE_AND_TOKENS, 200), Granted)
