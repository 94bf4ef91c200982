"""The limits of several gateways in one Redis. Each decision is one script, on Redis's clock.

    ratoon:limits:{TENANT}:requests | tokens | holds | month | total | owed

A call that Redis does not answer, or refuses (no memory, read-only, loading), raises Unavailable.
`guarded` then decides. Redis may still carry out a call that was given up (NoAnswer). The hold of
the call lapses, or `guarded` settles it.

Each gateway remembers the spending that it last saw. A budget therefore does not restart from zero
if Redis is emptied, or if a replica that takes over lacks the latest spending.
"""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gateway.limits import scripts
from gateway.limits.limiter import Amount, Demand, Granted, Hold, Verdict, by_tenant
from gateway.limits.token_bucket import (
    HOLD_US,
    MAX_LEVEL,
    LimitLevels,
    capacity,
    most_running,
    refusal_of,
    status_of,
)
from gateway.state.redis.link import RedisLink
from gateway.tenant_limits import MICRO, Limits


class Owed(NamedTuple):
    """A debt: requests and tokens admitted while Redis was away.

    Redis counts each debt once, by its name.
    """

    name: str = ""  # "": the debt has not been sent
    requests: int = 0
    tokens: int = 0


class _Seen(NamedTuple):
    spent: int = 0
    month: int = -1


class RedisLimiter:
    """A limiter in Redis. `clock` is Lua code that reads Redis's time.

    The limiter does not own the link, and leaves it open.
    """

    def __init__(self, link: RedisLink, *, clock: str = scripts.CLOCK) -> None:
        self._reserve = link.script(scripts.script(scripts.RESERVE, clock))
        self._charge = link.script(scripts.script(scripts.CHARGE, clock))
        self._renew = link.script(scripts.script(scripts.RENEW, clock))
        self._seen: dict[tuple[str, str], _Seen] = {}

    async def reserve(self, demand: Demand) -> Verdict:
        return await self.reserve_owing(demand, ())

    async def reserve_owing(self, demand: Demand, owed: Sequence[Owed]) -> Verdict:
        """Reserve all of the demand or nothing, and count the debts in either case."""
        limits = demand.limits
        budget = limits.budget
        period = "" if budget is None else budget.period
        seen = self._seen.get((demand.tenant_id, period), _Seen())
        reply = await self._reserve(
            _keys(demand.tenant_id),
            [
                *_rate(limits.requests_per_minute, limits),
                *_rate(limits.tokens_per_minute, limits),
                most_running(limits),
                "" if budget is None else int(budget.units * MICRO),
                period,
                demand.most.tokens,
                demand.most.cost,
                _member(demand),
                HOLD_US,
                secrets.token_hex(8),
                *seen,
                "" if demand.begun is None else _member(as_begun(demand, demand.begun)),
                *(field for one in owed for field in one),
            ],
        )
        fits, *levels, spent, month, named = reply
        epoch = named.decode()
        if budget is not None:
            self._seen[demand.tenant_id, period] = _Seen(spent, month)
        found = LimitLevels(*levels)
        refusal = None if fits else refusal_of(demand, found)
        return refusal or Granted(Hold(demand, epoch), status_of(limits, found))

    async def charge(self, hold: Hold, used: Amount, *, again: bool = False) -> None:
        """Release the hold and charge the tokens and cost that the request used.

        With `again`, Redis may have counted this charge before and released its hold. If Redis no
        longer has the hold, nothing is charged, even if the hold has lapsed.
        """
        demand = hold.demand
        await self._charge(
            _keys(demand.tenant_id),
            [
                _or_none(demand.limits.tokens_per_minute),
                MAX_LEVEL,
                _member(demand),
                used.tokens,
                used.cost,
                HOLD_US,
                hold.epoch,
                secrets.token_hex(8),
                "1" if again else "",
            ],
        )

    async def renew(self, holds: Sequence[Hold]) -> None:
        for tenant_id, some in by_tenant(holds):
            members = [_member(hold.demand) for hold in some]
            await self._renew(_keys(tenant_id), [HOLD_US, *members])

    async def close(self) -> None:
        """Close nothing, because the limiter does not own the link to Redis."""


def _keys(tenant_id: str) -> list[str]:
    """List the keys of a tenant's limits. Their braces put all keys on one node of a cluster."""
    names = ("requests", "tokens", "holds", "month", "total", "owed")
    return [f"ratoon:limits:{{{tenant_id}}}:{name}" for name in names]


def _rate(rate: int | None, limits: Limits) -> tuple[int | str, int | str]:
    return ("", "") if rate is None else (rate, capacity(rate, limits.burst_s))


def _or_none(value: int | None) -> int | str:
    return "" if value is None else value


def as_begun(demand: Demand, begun: Amount) -> Demand:
    """Return `demand` as it was at the request's start, when the request held `begun`."""
    return msgspec.structs.replace(demand, most=begun, begun=None)


def _member(demand: Demand) -> str:
    budget = demand.limits.budget
    period = "" if budget is None else budget.period
    return f"{demand.id}|{demand.most.tokens}|{demand.most.cost}|{period}"
