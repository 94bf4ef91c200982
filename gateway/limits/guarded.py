"""Limits in Redis, and what decides while Redis is down, slow, frozen, full or read-only.

Redis answers      it decides; what it grants is counted here too, so that the local buckets
                   show what this process has admitted
it does not        this process decides alone, at its share of every rate; a tenant with a
                   budget is refused, because a budget must never be exceeded (Unavailable)
it answers again   it is sent what was admitted and charged meanwhile
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from gateway.errors import Unavailable
from gateway.limits.limiter import Amount, Demand, Granted, Hold, Verdict
from gateway.limits.limits import Limits
from gateway.limits.memory import MemoryLimiter
from gateway.limits.redis import Owed, RedisLimiter, as_begun
from gateway.state.redis.link import NoAnswer

_STAND_IN = "stand-in"  # the epoch of holds of the local limiter
_MAX_UNSETTLED = 10_000


class GuardedLimiter:
    """`gateway.limits.limiter.Limiter` over Redis. `replicas`: processes that share the limits."""

    def __init__(
        self,
        shared: RedisLimiter,
        *,
        replicas: int,
        alone: MemoryLimiter | None = None,
    ) -> None:
        self._shared = shared
        self._replicas = replicas
        self._alone = alone or MemoryLimiter()
        self._owed: dict[str, Owed] = {}
        self._uncharged: deque[tuple[Hold, Amount]] = deque(maxlen=_MAX_UNSETTLED)
        self._catching_up: asyncio.Task[None] | None = None

    async def reserve(self, demand: Demand) -> Verdict:
        """Redis's verdict, or this process's; Unavailable for a tenant with a budget."""
        try:
            verdict = await self._ask(demand)
        except Unavailable as error:
            return await self._decide_alone(demand, error)
        if isinstance(verdict, Granted) and demand.begun is None:
            self._count(demand, requests=1)
        elif isinstance(verdict, Granted):
            await self._alone.charge(Hold(demand), Amount())  # it may have begun there
        return verdict

    async def charge(self, hold: Hold, used: Amount) -> None:
        """Settle where the hold is; with Redis later, if it does not answer now."""
        if hold.epoch == _STAND_IN:
            await self._alone.charge(hold, used)
            self._owe(hold.demand.tenant_id, tokens=used.tokens)
            return
        self._count(hold.demand, tokens=used.tokens)
        if not await self._charge_shared(hold, used):
            self._uncharged.append((hold, used))

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Renew holds; those in Redis may lapse if it does not answer."""
        await self._alone.renew([hold for hold in holds if hold.epoch == _STAND_IN])
        self._catch_up()
        with suppress(Unavailable):
            await self._shared.renew([hold for hold in holds if hold.epoch != _STAND_IN])

    async def close(self) -> None:
        """Close the connections."""
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        await self._shared.close()

    async def _ask(self, demand: Demand) -> Verdict:
        """Redis's verdict; raises Unavailable."""
        owed = self._owed.pop(demand.tenant_id, Owed())
        try:
            verdict = await self._shared.reserve_owing(demand, owed)
        except (Unavailable, asyncio.CancelledError) as error:
            self._owe(demand.tenant_id, *owed)
            if isinstance(error, NoAnswer | asyncio.CancelledError):  # it may hold it all the same
                self._uncharged.append((Hold(demand), Amount()))
            if isinstance(error, asyncio.CancelledError):
                self._catch_up()  # else, when it answers again
            raise
        self._catch_up()
        return verdict

    async def _decide_alone(self, demand: Demand, error: Unavailable) -> Verdict:
        if demand.limits.budget is not None:
            raise error  # a budget cannot be looked up
        share = self._share(demand.limits)
        verdict = await self._alone.reserve(msgspec.structs.replace(demand, limits=share))
        if isinstance(verdict, Granted):
            if demand.begun is None:
                self._owe(demand.tenant_id, requests=1)
            else:  # with a hold in Redis perhaps
                self._uncharged.append((Hold(as_begun(demand, demand.begun)), Amount()))
            return Granted(Hold(verdict.hold.demand, _STAND_IN), verdict.standing)
        return verdict

    async def _charge_shared(self, hold: Hold, used: Amount) -> bool:
        try:
            await self._shared.charge(hold, used)
        except Unavailable:
            return False
        return True

    def _catch_up(self) -> None:
        """Start telling Redis what was settled while it did not answer."""
        if self._uncharged and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.create_task(self._charge_all(), name="limits-catch-up")

    async def _charge_all(self) -> None:
        while self._uncharged:
            hold, used = self._uncharged.popleft()
            if not await self._charge_shared(hold, used):
                self._uncharged.appendleft((hold, used))
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
