"""The limits in this process's memory: exact only for this process, and lost when it ends.

This limiter decides while Redis is down (`guarded`), and is the simplest limiter of the contract
suite.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from gateway.limits.limiter import Amount, Demand, Hold, Verdict, by_tenant
from gateway.limits.token_bucket import Account, Moment
from gateway.tenant_limits import Limits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a limiter outside Redis: one for rates and holds, one for calendar months.

    `monotonic` returns seconds of a clock that all processes of a machine share. `wall` returns
    seconds since the epoch.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __call__(self) -> Moment:
        return Moment(int(self.monotonic() * 1_000_000), month_of(self.wall()))


def month_of(wall: float) -> int:
    """Convert seconds since the epoch to the calendar month (UTC), counted from year 0."""
    day = datetime.fromtimestamp(wall, UTC)
    return day.year * 12 + day.month - 1


class AccountLimiter:
    """A limiter over tenants' accounts. `_change` decides where the accounts are stored."""

    def __init__(self, clocks: Callable[[], Moment] | None = None) -> None:
        self._clocks = clocks or Clocks()

    async def reserve(self, demand: Demand) -> Verdict:
        return await self._change(demand.tenant_id, lambda a: a.reserve(demand, self._clocks()))

    async def charge(self, hold: Hold, used: Amount) -> None:
        await self._change(hold.demand.tenant_id, lambda a: a.charge(hold, used, self._clocks()))

    async def renew(self, holds: Sequence[Hold]) -> None:
        for tenant_id, some in by_tenant(holds):
            renew = partial(Account.renew, holds=some, moment=self._clocks())
            await self._change(tenant_id, renew)
            await asyncio.sleep(0)

    async def _change(self, tenant_id: str, change: Callable[[Account], T]) -> T:
        """Change a tenant's account. No other task changes the account meanwhile."""
        raise NotImplementedError


class MemoryLimiter(AccountLimiter):
    """A limiter in a dictionary. It never raises Unavailable."""

    def __init__(self, clocks: Callable[[], Moment] | None = None) -> None:
        super().__init__(clocks)
        self._accounts: dict[str, Account] = {}

    def owe(self, tenant_id: str, limits: Limits, requests: int, tokens: int) -> None:
        """Count tokens and requests that another limiter has admitted."""
        self._account(tenant_id).owe(limits, requests, tokens, self._clocks())

    async def close(self) -> None:
        """Close nothing, since the limiter holds no file or connection."""

    async def _change(self, tenant_id: str, change: Callable[[Account], T]) -> T:
        return change(self._account(tenant_id))

    def _account(self, tenant_id: str) -> Account:
        return self._accounts.setdefault(tenant_id, Account())
