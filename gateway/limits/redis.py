"""Limits of several gateways in one Redis: each decision is one script, on Redis's own clock.

    ratoon:limits:{TENANT}:requests | tokens | holds | month | total

A call that is not answered within TIMEOUT_S (`gateway.within`), or answered with an error (no
memory, read-only, loading), raises LimiterDown; `guarded` decides what happens then. Redis may
still carry out a call that was given up; its hold then lapses, or is settled by `guarded`.

What was last seen as spent is remembered, so that no budget starts again when Redis is emptied.

Knows: keys, the wire. Does not know: what is decided (`scripts`, `account`).
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.limits import scripts
from gateway.limits.account import HOLD_US, Levels, refusal_of, standing_of
from gateway.limits.bucket import capacity
from gateway.limits.limiter import Amount, Demand, Granted, Hold, LimiterDown, Verdict
from gateway.limits.limits import Limits
from gateway.limits.prices import MICRO
from gateway.within import within

T = TypeVar("T")

TIMEOUT_S = 0.05
_RENEWED_AT_ONCE = 500


class Owed(NamedTuple):
    """What was admitted while Redis was away."""

    requests: int = 0
    tokens: int = 0


class _Seen(NamedTuple):
    spent: int = 0
    epoch: str = ""
    month: int = -1


class RedisLimiter:
    """`gateway.limits.limiter.Limiter` in Redis. `clock` is Lua for Redis's time."""

    def __init__(
        self, client: Redis, *, timeout_s: float = TIMEOUT_S, clock: str = scripts.CLOCK
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        # A script object loads itself again when Redis has forgotten it (NOSCRIPT).
        self._reserve = client.register_script(scripts.reserve(clock))
        self._settle = client.register_script(scripts.settle(clock))
        self._renew = client.register_script(scripts.renew(clock))
        self._seen: dict[tuple[str, str], _Seen] = {}

    async def reserve(self, demand: Demand) -> Verdict:
        """Take everything or nothing."""
        return await self.reserve_owing(demand, Owed())

    async def reserve_owing(self, demand: Demand, owed: Owed) -> Verdict:
        """Count what is owed in any case, and reserve everything or nothing."""
        limits = demand.limits
        budget = limits.budget
        period = "" if budget is None else budget.period
        seen = self._seen.get((demand.tenant_id, period), _Seen())
        reply = await self._in_time(
            self._reserve(
                keys=_keys(demand.tenant_id),
                args=[
                    *_rate(limits.requests_per_minute, limits),
                    *_rate(limits.tokens_per_minute, limits),
                    _or_none(limits.max_concurrent),
                    "" if budget is None else int(budget.units * MICRO),
                    period,
                    demand.most.tokens,
                    demand.most.cost,
                    _member(demand),
                    HOLD_US,
                    secrets.token_hex(8),
                    *seen,
                    *owed,
                ],
            )
        )
        fits, *levels, spent, month, epoch = reply
        if budget is not None:
            self._seen[demand.tenant_id, period] = _Seen(spent, epoch, month)
        found = Levels(*levels)
        refusal = None if fits else refusal_of(demand, found)
        return refusal or Granted(Hold(demand, epoch), standing_of(limits, found))

    async def settle(self, hold: Hold, used: Amount) -> None:
        """Give the hold back and count what was used."""
        demand = hold.demand
        await self._in_time(
            self._settle(
                keys=_keys(demand.tenant_id),
                args=[
                    *_rate(demand.limits.tokens_per_minute, demand.limits),
                    _member(demand),
                    used.tokens,
                    used.cost,
                    HOLD_US,
                    hold.epoch,
                    secrets.token_hex(8),
                ],
            )
        )

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Let holds last on."""
        by_tenant: dict[str, list[str]] = {}
        for hold in holds:
            by_tenant.setdefault(hold.demand.tenant_id, []).append(_member(hold.demand))
        for tenant_id, members in by_tenant.items():
            for at in range(0, len(members), _RENEWED_AT_ONCE):
                some = members[at : at + _RENEWED_AT_ONCE]
                await self._in_time(self._renew(keys=_keys(tenant_id), args=[HOLD_US, *some]))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _in_time(self, answer: Awaitable[T]) -> Any:
        try:
            async with within(self._timeout_s):
                return await answer
        except (RedisError, OSError, TimeoutError) as error:
            raise LimiterDown(type(error).__name__) from error


def _keys(tenant_id: str) -> list[str]:
    """All of a tenant's keys; the braces keep them on one node of a cluster."""
    names = ("requests", "tokens", "holds", "month", "total")
    return [f"ratoon:limits:{{{tenant_id}}}:{name}" for name in names]


def _rate(rate: int | None, limits: Limits) -> tuple[int | str, int | str]:
    return ("", "") if rate is None else (rate, capacity(rate, limits.burst_s))


def _or_none(value: int | None) -> int | str:
    return "" if value is None else value


def _member(demand: Demand) -> str:
    budget = demand.limits.budget
    period = "" if budget is None else budget.period
    return f"{demand.id}|{demand.most.tokens}|{demand.most.cost}|{period}"
