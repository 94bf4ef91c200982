"""What is counted where while Redis comes and goes, step by step on a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.breaker import FAILURES, Breaker
from gateway.limits.clocks import Clocks
from gateway.limits.guarded import GuardedLimiter
from gateway.limits.limiter import (
    HOLD_S,
    Amount,
    Demand,
    Granted,
    Hold,
    LimiterDown,
    Refused,
    Verdict,
)
from gateway.limits.limits import Limits
from gateway.limits.memory import MemoryLimiter
from gateway.limits.redis import Owed, RedisLimiter
from tests.gateway.manual_clock import ManualClock

ONE_AT_ONCE = Limits(max_concurrent=1)
TOKENS = Limits(tokens_per_minute=600)


class NearRedis(RedisLimiter):
    """Redis's part played from memory: it can be away, or answer when nobody waits any more."""

    def __init__(self, clocks: Clocks) -> None:
        self.memory = MemoryLimiter(clocks)
        self.is_away = False
        self.is_late = False
        self.settles = asyncio.Event()
        self.settles.set()

    async def reserve_owing(self, demand: Demand, owed: Owed) -> Verdict:
        self._look()
        self.memory.owe(demand.tenant_id, demand.limits, *owed)
        verdict = await self.memory.reserve(demand)
        if self.is_late:
            raise LimiterDown("late")
        return verdict

    async def settle(self, hold: Hold, used: Amount) -> None:
        self._look()
        await self.settles.wait()
        await self.memory.settle(hold, used)

    async def renew(self, holds: Sequence[Hold]) -> None:
        self._look()
        await self.memory.renew(holds)

    async def close(self) -> None:
        pass

    def _look(self) -> None:
        if self.is_away:
            raise LimiterDown("away")


class Guarded:
    """A guarded limiter alone with its Redis, and the clock of both."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        clocks = Clocks(self.clock, ManualClock(1e9))
        self.redis = NearRedis(clocks)
        self.breaker = Breaker(self.clock)
        self.limiter = GuardedLimiter(
            self.redis, replicas=1, alone=MemoryLimiter(clocks), breaker=self.breaker
        )

    async def ask(self, name: str, limits: Limits, tokens: int = 0) -> Verdict:
        return await self.limiter.reserve(Demand(name, "tn_a", limits, Amount(tokens=tokens)))

    async def hold(self, name: str, limits: Limits, tokens: int = 0) -> Hold:
        verdict = await self.ask(name, limits, tokens)
        assert isinstance(verdict, Granted)
        return verdict.hold


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


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
    assert isinstance(await guarded.ask("b", ONE_AT_ONCE), Refused if renews else Granted)


async def test_tokens_used_while_redis_was_away_count_when_it_is_back(guarded: Guarded) -> None:
    guarded.redis.is_away = True
    held = await guarded.hold("a", TOKENS, 500)
    await guarded.limiter.settle(held, Amount(tokens=400))
    guarded.redis.is_away = False
    assert isinstance(await guarded.ask("b", TOKENS, 201), Refused)
    assert isinstance(await guarded.ask("c", TOKENS, 200), Granted)


async def test_tokens_used_before_redis_went_away_count_here(guarded: Guarded) -> None:
    held = await guarded.hold("a", TOKENS, 500)
    await guarded.limiter.settle(held, Amount(tokens=400))
    guarded.redis.is_away = True
    assert isinstance(await guarded.ask("b", TOKENS, 201), Refused)
    assert isinstance(await guarded.ask("c", TOKENS, 200), Granted)


async def test_what_redis_carried_out_too_late_is_given_back_with_the_next_request(
    guarded: Guarded,
) -> None:
    guarded.redis.is_late = True
    await guarded.limiter.settle(await guarded.hold("late", ONE_AT_ONCE), Amount())
    guarded.redis.is_late = False
    assert isinstance(await guarded.ask("b", ONE_AT_ONCE), Refused), "Redis holds the late one"
    for _ in range(5):
        await asyncio.sleep(0)  # the settling goes on beside
    assert isinstance(await guarded.ask("c", ONE_AT_ONCE), Granted)


async def test_renewals_that_fail_open_the_breaker_too(guarded: Guarded) -> None:
    """Or a gateway with long streams and no new requests would wait for each of them."""
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
    await guarded.limiter.settle(held, Amount())
    guarded.redis.is_away = False
    guarded.redis.settles.clear()
    await guarded.limiter.renew([])
    await asyncio.sleep(0)
    settling = [t for t in asyncio.all_tasks() if t.get_name() == "limits-catch-up"]
    assert len(settling) == 1
    await guarded.limiter.close()
    assert settling[0].cancelled()
