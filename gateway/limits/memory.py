"""Limits held in this process: exact for it alone, gone with it.

It decides while Redis is down (`guarded`), and is the simplest limiter of the contract suite.

Knows: accounts by tenant. Does not know: what is decided about one (`account`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.limits.account import Account, Moment
from gateway.limits.clocks import Clocks
from gateway.limits.limiter import Amount, Demand, Hold, Verdict
from gateway.limits.limits import Limits


class MemoryLimiter:
    """`gateway.limits.limiter.Limiter` in a dictionary. Never raises LimiterDown."""

    def __init__(self, clocks: Callable[[], Moment] | None = None) -> None:
        self._clocks = clocks or Clocks()
        self._accounts: dict[str, Account] = {}

    async def reserve(self, demand: Demand) -> Verdict:
        """Take everything or nothing."""
        return self._account(demand.tenant_id).reserve(demand, self._clocks())

    async def settle(self, hold: Hold, used: Amount) -> None:
        """Give the hold back and count what was used."""
        self._account(hold.demand.tenant_id).settle(hold, used, self._clocks())

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Let holds last on."""
        for hold in holds:
            self._account(hold.demand.tenant_id).renew(hold, self._clocks())

    async def close(self) -> None:
        """Nothing is held open."""

    def owe(self, tenant_id: str, limits: Limits, requests: int, tokens: int) -> None:
        """Count what was admitted elsewhere."""
        self._account(tenant_id).owe(limits, requests, tokens, self._clocks())

    def _account(self, tenant_id: str) -> Account:
        return self._accounts.setdefault(tenant_id, Account())
