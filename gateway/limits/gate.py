"""Reserves a request's part of its tenant's limits while it runs, and settles it however it ends.

Knows: what a request may use at most, which refusal becomes which error. Does not know: how a
limiter decides (`limiter`), or how the numbers are written on the wire.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from gateway.admission import Admitted
from gateway.caller import Caller
from gateway.errors import BudgetSpent, GatewayError, LimitReached, Unavailable
from gateway.limits.limiter import (
    HOLD_S,
    Amount,
    Demand,
    Granted,
    Hold,
    Limiter,
    LimiterDown,
    Refused,
)
from gateway.limits.prices import Prices, Tokens
from gateway.limits.standing import Standing

RENEW_EVERY_S = HOLD_S / 4


class LimitGate:
    """Lets requests through within their tenants' limits. For one event loop."""

    def __init__(self, limiter: Limiter, prices: Prices) -> None:
        self._limiter = limiter
        self._prices = prices
        self._holds: dict[str, Hold] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._name = secrets.token_hex(8)
        self._numbers = count()

    @asynccontextmanager
    async def held(
        self, caller: Caller, admitted: Admitted, used: Callable[[], Tokens]
    ) -> AsyncIterator[Standing]:
        """Reserve the most that `admitted` may use; at the end settle what `used` returns.

        Raises LimitReached, BudgetSpent, or Unavailable if the budget cannot be looked up.
        """
        if caller.limits.is_unlimited:
            yield Standing()
            return
        granted = await self._reserve(self._demand(caller, admitted))
        self._holds[granted.hold.demand.id] = granted.hold
        try:
            yield granted.standing
        finally:
            del self._holds[granted.hold.demand.id]
            await self._settle(granted.hold, self._amount(used()))

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[LimitGate]:
        """Renew all holds while this is open; at the end wait for settlements under way."""
        renewing = asyncio.create_task(self._renew(), name="limits-renew")
        try:
            yield self
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, *self._settling, return_exceptions=True)
            await self._limiter.close()

    def _demand(self, caller: Caller, admitted: Admitted) -> Demand:
        generated = sum(generate.sampling.max_tokens for generate in admitted.generates)
        most = Tokens(computed=admitted.prompt_tokens, generated=generated)
        name = f"{self._name}-{next(self._numbers)}"
        return Demand(name, caller.tenant_id, caller.limits, self._amount(most))

    def _amount(self, tokens: Tokens) -> Amount:
        return Amount(tokens.worked, self._prices.cost(tokens))

    async def _reserve(self, demand: Demand) -> Granted:
        try:
            verdict = await self._limiter.reserve(demand)
        except LimiterDown as error:
            raise Unavailable(
                "the tenant's budget cannot be looked up at the moment",
                code="limits_unavailable",
                retry_after_s=1.0,
            ) from error
        if isinstance(verdict, Refused):
            raise refusal(verdict, demand)
        return verdict

    async def _settle(self, hold: Hold, used: Amount) -> None:
        """Settle, even if the caller is cancelled meanwhile."""
        most = hold.demand.most
        used = Amount(min(used.tokens, most.tokens), min(used.cost, most.cost))
        task = asyncio.create_task(self._settle_now(hold, used))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        await asyncio.shield(task)

    async def _settle_now(self, hold: Hold, used: Amount) -> None:
        try:
            await self._limiter.settle(hold, used)
        except LimiterDown:
            return  # the hold lapses: its budget is charged whole then

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                await self._limiter.renew(list(self._holds.values()))
            except LimiterDown:
                continue  # holds outlast several renewals


def refusal(refused: Refused, demand: Demand) -> GatewayError:
    """The error for a refusal."""
    if refused.reason == "budget":
        return BudgetSpent("the tenant's remaining budget does not cover this request")
    limits = demand.limits
    texts = {
        "requests": f"limited to {limits.requests_per_minute} requests a minute",
        "tokens": f"limited to {limits.tokens_per_minute} tokens a minute; this request may need "
        f"{demand.most.tokens}",
        "concurrent": f"limited to {limits.max_concurrent} requests at once",
    }
    return LimitReached(
        texts[refused.reason],
        reason=refused.reason,
        standing=refused.standing,
        retry_after_s=refused.retry_after_s,
    )
