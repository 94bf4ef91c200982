"""The limits in Redis, and a local stand-in while Redis is down, slow, full or read-only.

Redis answers      Redis decides; its grants also count in the local buckets, which then show
                   how much this process has admitted
Redis is away      this process decides alone, at its share of every rate; a tenant with a
                   budget is refused, because a budget must never be exceeded (Unavailable)
Redis is back      Redis is sent the requests admitted and the charges made meanwhile
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from gateway.errors import Unavailable
from gateway.limits.limiter import Amount, Demand, Granted, Hold, Verdict
from gateway.limits.memory import MemoryLimiter
from gateway.limits.redis import Owed, RedisLimiter, as_begun
from gateway.limits.unpaid import Unpaid, uncounted
from gateway.state.redis.link import NoAnswer
from gateway.tenant_limits import Limits

_STAND_IN = "stand-in"
_MAX_DEBTS = 64


class _Uncharged(NamedTuple):
    """A charge that Redis has to settle, and may have settled already if `was_asked`."""

    hold: Hold
    used: Amount
    was_asked: bool = False


class GuardedLimiter:
    """A limiter in Redis with a local stand-in.

    `replicas` is the number of processes that share the limits.
    """

    def __init__(
        self,
        shared: RedisLimiter,
        *,
        replicas: int,
        alone: MemoryLimiter | None = None,
        on_lost: Callable[[], None] = uncounted,
    ) -> None:
        self._shared = shared
        self._replicas = replicas
        self._alone = alone or MemoryLimiter()
        # each tenant's debts; all debts but the last have been sent to Redis
        self._owed: defaultdict[str, list[Owed]] = defaultdict(list)
        self._uncharged = Unpaid[_Uncharged](on_lost=on_lost)
        self._catching_up: asyncio.Task[None] | None = None

    async def reserve(self, demand: Demand) -> Verdict:
        """Reserve in Redis, or in this process while Redis is away.

        While Redis is away, a tenant with a budget gets Unavailable.
        """
        try:
            verdict = await self._ask(demand)
        except Unavailable as error:
            return await self._decide_alone(demand, error)
        if isinstance(verdict, Granted) and demand.begun is None:
            self._count(demand, requests=1)
        elif isinstance(verdict, Granted):
            # releases the hold that the stand-in may have made for this request
            await self._alone.charge(Hold(demand), Amount())
        return verdict

    async def charge(self, hold: Hold, used: Amount) -> None:
        """Settle the hold where it was reserved. If Redis does not answer, settle it later."""
        if hold.epoch == _STAND_IN:
            await self._alone.charge(hold, used)
            self._owe(hold.demand.tenant_id, tokens=used.tokens)
            return
        self._count(hold.demand, tokens=used.tokens)
        if (left := await self._charge_shared(_Uncharged(hold, used))) is not None:
            self._uncharged.append(left)

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Renew holds. Holds in Redis may lapse if Redis does not answer."""
        await self._alone.renew([hold for hold in holds if hold.epoch == _STAND_IN])
        self._catch_up()
        with suppress(Unavailable):
            await self._shared.renew([hold for hold in holds if hold.epoch != _STAND_IN])

    async def close(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        await self._shared.close()

    async def _ask(self, demand: Demand) -> Verdict:
        every = _bounded(self._owed.pop(demand.tenant_id, []))
        owed = [one if one.name else one._replace(name=secrets.token_hex(8)) for one in every]
        try:
            verdict = await self._shared.reserve_owing(demand, owed)
        except (Unavailable, asyncio.CancelledError) as error:
            was_asked = isinstance(error, NoAnswer | asyncio.CancelledError)
            self._owe_again(demand.tenant_id, owed if was_asked else every)
            if was_asked:  # Redis may have made the reservation
                self._uncharged.append(_Uncharged(Hold(demand), Amount()))
            if isinstance(error, asyncio.CancelledError):
                # Redis may answer, though this call was cancelled. After any other error a later
                # call catches up, once Redis answers again.
                self._catch_up()
            raise
        self._catch_up()
        return verdict

    async def _decide_alone(self, demand: Demand, error: Unavailable) -> Verdict:
        if demand.limits.budget is not None:
            raise error  # nobody can look up the budget
        share = self._share(demand.limits)
        verdict = await self._alone.reserve(msgspec.structs.replace(demand, limits=share))
        if isinstance(verdict, Granted):
            if demand.begun is None:
                self._owe(demand.tenant_id, requests=1)
            else:  # Redis may hold the amount with which the request began
                begun = Hold(as_begun(demand, demand.begun))
                self._uncharged.append(_Uncharged(begun, Amount()))
            return Granted(Hold(verdict.hold.demand, _STAND_IN), verdict.standing)
        return verdict

    async def _charge_shared(self, one: _Uncharged) -> _Uncharged | None:
        try:
            await self._shared.charge(one.hold, one.used, again=one.was_asked)
        except Unavailable as error:
            return one._replace(was_asked=one.was_asked or isinstance(error, NoAnswer))
        return None

    def _catch_up(self) -> None:
        if self._uncharged and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.create_task(self._charge_all(), name="limits-catch-up")

    async def _charge_all(self) -> None:
        while self._uncharged:
            left = await self._charge_shared(self._uncharged.popleft())
            if left is not None:
                self._uncharged.appendleft(left)
                return

    def _count(self, demand: Demand, *, requests: int = 0, tokens: int = 0) -> None:
        self._alone.owe(demand.tenant_id, self._share(demand.limits), requests, tokens)

    def _owe(self, tenant_id: str, requests: int = 0, tokens: int = 0) -> None:
        every = self._owed[tenant_id]
        unsent = every.pop() if every and not every[-1].name else Owed()
        every.append(Owed("", unsent.requests + requests, unsent.tokens + tokens))

    def _owe_again(self, tenant_id: str, owed: list[Owed]) -> None:
        """Put unsettled debts back, before the debts that have arisen meanwhile."""
        if owed:
            last = owed[-1]
            self._owed[tenant_id][:0] = owed if last.name else owed[:-1]
            if not last.name:
                self._owe(tenant_id, last.requests, last.tokens)

    def _share(self, limits: Limits) -> Limits:
        return msgspec.structs.replace(
            limits,
            requests_per_minute=self._part(limits.requests_per_minute),
            tokens_per_minute=self._part(limits.tokens_per_minute),
            max_concurrent=self._part(limits.max_concurrent),
        )

    def _part(self, whole: int | None) -> int | None:
        return None if whole is None else max(1, whole // self._replicas)


def _bounded(owed: list[Owed]) -> list[Owed]:
    """Return the debts, joined into one debt if there are too many.

    Redis may have counted some of the joined debts already.
    """
    if len(owed) <= _MAX_DEBTS:
        return owed
    return [Owed("", sum(one.requests for one in owed), sum(one.tokens for one in owed))]
