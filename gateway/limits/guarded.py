"""Limits in Redis, and what decides while Redis is down, slow, frozen, full or read-only.

    Redis answers      it decides; what it grants is counted here too, so that the local buckets
                       show what this process has admitted
    it does not        this process decides alone, at its share of every rate; a tenant with a
                       budget is refused, because a budget is a promise (LimiterDown)
    it answers again   it is told what was admitted and settled meanwhile

After a few failures a circuit breaker stops all calls but one a second, so that only a handful of
requests of an outage wait for a timeout.

Knows: two limiters and which of them decides. Does not know: how either does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from gateway.breaker import Breaker
from gateway.limits.limiter import Amount, Demand, Granted, Hold, LimiterDown, Verdict
from gateway.limits.limits import Limits
from gateway.limits.memory import MemoryLimiter
from gateway.limits.redis import Owed, RedisLimiter

_STAND_IN = "stand-in"  # the epoch of holds of the local limiter
_AT_ONCE = 8  # calls to Redis: more would only wait there while their timeouts run
_MAX_UNSETTLED = 10_000


class GuardedLimiter:
    """`gateway.limits.limiter.Limiter` over Redis. `replicas`: processes that share the limits."""

    def __init__(
        self,
        shared: RedisLimiter,
        *,
        replicas: int,
        alone: MemoryLimiter | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self._shared = shared
        self._replicas = replicas
        self._alone = alone or MemoryLimiter()
        self._breaker = breaker or Breaker(time.monotonic)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._owed: dict[str, Owed] = {}
        self._unsettled: deque[tuple[Hold, Amount]] = deque(maxlen=_MAX_UNSETTLED)
        self._catching_up: asyncio.Task[None] | None = None

    async def reserve(self, demand: Demand) -> Verdict:
        """Redis's verdict, or this process's; LimiterDown for a tenant with a budget."""
        verdict = await self._ask(demand)
        if verdict is None:
            return await self._decide_alone(demand)
        if isinstance(verdict, Granted):
            self._count(demand, requests=1)
        return verdict

    async def settle(self, hold: Hold, used: Amount) -> None:
        """Settle where the hold is; with Redis later, if it does not answer now."""
        if hold.epoch == _STAND_IN:
            await self._alone.settle(hold, used)
            self._owe(hold.demand.tenant_id, tokens=used.tokens)
            return
        self._count(hold.demand, tokens=used.tokens)
        if not await self._settle_shared(hold, used):
            self._unsettled.append((hold, used))

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Renew holds; those in Redis may lapse if it does not answer."""
        await self._alone.renew([hold for hold in holds if hold.epoch == _STAND_IN])
        self._catch_up()
        shared = [hold for hold in holds if hold.epoch != _STAND_IN]
        async with self._turns:
            if not shared or not self._breaker.admits():
                return
            try:
                await self._shared.renew(shared)
            except LimiterDown:
                self._breaker.failed()
            else:
                self._breaker.succeeded()

    async def close(self) -> None:
        """Close the connections."""
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        await self._shared.close()

    async def _ask(self, demand: Demand) -> Verdict | None:
        """Redis's verdict; None while it does not answer."""
        async with self._turns:
            if not self._breaker.admits():
                return None
            owed = self._owed.pop(demand.tenant_id, Owed())
            try:
                verdict = await self._shared.reserve_owing(demand, owed)
            except LimiterDown:
                self._breaker.failed()
                self._owe(demand.tenant_id, *owed)
                # Redis may still carry it out later: give that hold back then.
                self._unsettled.append((Hold(demand), Amount()))
                return None
            self._breaker.succeeded()
        self._catch_up()
        return verdict

    async def _decide_alone(self, demand: Demand) -> Verdict:
        if demand.limits.budget is not None:
            raise LimiterDown("a budget cannot be looked up")
        share = self._share(demand.limits)
        verdict = await self._alone.reserve(msgspec.structs.replace(demand, limits=share))
        if isinstance(verdict, Granted):
            self._owe(demand.tenant_id, requests=1)
            return Granted(Hold(verdict.hold.demand, _STAND_IN), verdict.standing)
        return verdict

    async def _settle_shared(self, hold: Hold, used: Amount) -> bool:
        async with self._turns:
            if not self._breaker.admits():
                return False
            try:
                await self._shared.settle(hold, used)
            except LimiterDown:
                self._breaker.failed()
                return False
            self._breaker.succeeded()
            return True

    def _catch_up(self) -> None:
        """Start telling Redis what was settled while it did not answer."""
        if self._unsettled and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.create_task(self._settle_all(), name="limits-catch-up")

    async def _settle_all(self) -> None:
        while self._unsettled:
            hold, used = self._unsettled.popleft()
            if not await self._settle_shared(hold, used):
                self._unsettled.appendleft((hold, used))
                return

    def _count(self, demand: Demand, *, requests: int = 0, tokens: int = 0) -> None:
        self._alone.owe(demand.tenant_id, self._share(demand.limits), requests, tokens)

    def _owe(self, tenant_id: str, requests: int = 0, tokens: int = 0) -> None:
        owed = self._owed.get(tenant_id, Owed())
        self._owed[tenant_id] = Owed(owed.requests + requests, owed.tokens + tokens)

    def _share(self, limits: Limits) -> Limits:
        """This process's share of every limit, at least 1."""
        return msgspec.structs.replace(
            limits,
            requests_per_minute=self._part(limits.requests_per_minute),
            tokens_per_minute=self._part(limits.tokens_per_minute),
            max_concurrent=self._part(limits.max_concurrent),
        )

    def _part(self, whole: int | None) -> int | None:
        return None if whole is None else max(1, whole // self._replicas)
