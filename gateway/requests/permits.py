"""A request's permit: its share of its tenant's limits while it runs.

    key -> permit: streams, requests a minute, concurrency -> memory -> body -> tokens

A permit counts its request before the body is read, and reserves tokens when the prompts are
tokenised. The permit is settled and given back once, just before the last byte of the answer is
sent. A client that has its answer may then send the next request. If the request ends in another
way, the permit is given back at this end.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count

import msgspec

from gateway.caller import Caller
from gateway.errors import (
    BudgetSpent,
    StateDiskFull,
    StateLost,
    TooManyRequests,
    Unavailable,
)
from gateway.http.body_memory import BodyLease, BodyMemory
from gateway.limits.answer_lengths import AnswerLengths
from gateway.limits.fitting import of_the_rate, within_budget, within_rate
from gateway.limits.limiter import HOLD_S, Amount, Demand, Denied, Granted, Hold, Limiter, Verdict
from gateway.limits.open_streams import OpenStreams
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.processes.periodic import repeated
from gateway.prompts.generation_request import AdmittedRequest
from gateway.requests.limit_refusal import refusal
from gateway.tenant_limits import Prices, RateStatus, TokenCounts

_SHORT = 64  # a `max_tokens` below this number of tokens is never shortened
RENEW_EVERY_S = HOLD_S / 4


class Permits:
    """The issuer of permits to authenticated requests, on one event loop."""

    def __init__(
        self,
        limiter: Limiter,
        prices: Prices,
        streams: OpenStreams,
        bodies: BodyMemory,
        throttle: RefusalThrottle,
    ) -> None:
        self.prices = prices
        self.streams = streams
        self._limiter = limiter
        self._bodies = bodies
        self._throttle = throttle
        self.lengths = AnswerLengths()
        self._holds: dict[str, Hold] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._name = secrets.token_hex(8)
        self._numbers = count()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[Permits]:
        """Renew all holds while the context is open. Then wait for running settlements."""
        try:
            async with repeated(self._renew, "limits-renew"):
                yield self
        finally:
            await asyncio.gather(*self._settling, return_exceptions=True)
            await self._limiter.close()

    @asynccontextmanager
    async def taken(self, caller: Caller) -> AsyncIterator[Permit]:
        """Give a permit for one request of `caller`; raise GatewayError if it may not run now.

        Raises LimitReached, BudgetSpent, or Unavailable if the budget cannot be looked up. If a
        tenant has many refusals a second, refusals are delayed (`RefusalThrottle`).
        """
        with self._bodies.lease(caller.tenant_id) as body:
            permit = Permit(self, caller, body)
            try:
                await self._begin(permit)
                yield permit
            finally:
                await permit.give_back()

    async def reserve(self, demand: Demand) -> Granted:
        """Reserve `demand` at the limiter, and renew the hold; raise the errors of `taken`."""
        verdict = await self.asked(demand)
        if isinstance(verdict, Denied):
            raise refusal(verdict, demand)
        return verdict

    async def asked(self, demand: Demand) -> Verdict:
        """Ask the limiter for `demand`, and renew a granted hold; raise Unavailable."""
        try:
            verdict = await self._limiter.reserve(demand)
        except (StateLost, StateDiskFull):
            raise
        except Unavailable as error:
            raise Unavailable(
                "the tenant's budget cannot be looked up at the moment",
                code="limits_unavailable",
                retry_after_s=1.0,
            ) from error
        if isinstance(verdict, Granted):
            self._holds[demand.id] = verdict.hold
        return verdict

    async def charge(self, hold: Hold, used: Amount) -> None:
        """Settle `hold` for the amount `used`, even if the caller is cancelled meanwhile."""
        del self._holds[hold.demand.id]
        used = Amount(used.tokens, min(used.cost, hold.demand.most.cost))
        task = asyncio.create_task(self._charge_now(hold, used))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        await asyncio.shield(task)

    async def _begin(self, permit: Permit) -> None:
        """Reserve the request's stream and place in the rate limits, before its body is read."""
        caller = permit.caller
        try:
            permit.choose(1)
            if not caller.limits.is_unlimited:
                name = f"{self._name}-{next(self._numbers)}"
                permit.hold(
                    await self.reserve(Demand(name, caller.tenant_id, caller.limits, Amount()))
                )
        except (TooManyRequests, BudgetSpent):
            await permit.give_back()
            await self._throttle.wait(caller.tenant_id)
            raise

    async def _charge_now(self, hold: Hold, used: Amount) -> None:
        # if this fails, the hold expires and is charged to the budget in full
        with suppress(Unavailable):
            await self._limiter.charge(hold, used)

    async def _renew(self) -> None:
        await asyncio.sleep(RENEW_EVERY_S)
        # a failed renewal does no harm, because a hold outlasts several missed renewals
        with suppress(Unavailable):
            await self._limiter.renew(list(self._holds.values()))


class Permit:
    """A request's share of its tenant's limits, and the memory of its body.

    `standing` says how much of the tenant's rate limits is left.
    """

    def __init__(self, permits: Permits, caller: Caller, body: BodyLease) -> None:
        self.caller = caller
        self.body = body
        self.standing = RateStatus()
        self._permits = permits
        self._choices = 0
        self._hold: Hold | None = None  # None: the tenant has no limits
        self._used: Callable[[], TokenCounts] = TokenCounts
        self._unset = 0

    def choose(self, choices: int) -> None:
        """Count the request's choices as streams.

        Raises TooManyRequests if the tenant has too many streams.
        """
        self._permits.streams.take(self.caller.tenant_id, choices - self._choices)
        self._choices = choices

    def hold(self, granted: Granted) -> None:
        """Hold the granted share of the limits from now on."""
        self._hold, self.standing = granted.hold, granted.standing

    async def extend(self, admitted: AdmittedRequest) -> AdmittedRequest:
        """Release the body and reserve tokens; return the request, shortened to the limits.

        Answers without a `max_tokens` may be as long as the limits allow. A rate limit reserves the
        likely tokens of the answers, and a budget reserves their maximum cost. Raises the errors of
        `Permits.taken`. After an error the request keeps its hold.
        """
        self.body.release()
        if self._hold is None or not _counts_tokens(self._hold.demand):
            return admitted
        limits, answers = self._hold.demand.limits, len(admitted.generates)
        longest = max(generate.sampling.max_tokens for generate in admitted.generates)
        if admitted.max_tokens_may_shrink and longest >= _SHORT:
            others = admitted.prompt_tokens + admitted.prediction_tokens
            fits = within_rate(limits, others, answers)
            admitted = admitted if fits is None else admitted.shortened(fits)
            self._unset = answers
        verdict = await self._asked_on(admitted)
        if isinstance(verdict, Denied) and verdict.reason == "budget" and self._unset:
            prices = self._permits.prices
            rejected = prices.cost(TokenCounts(generated=admitted.prediction_tokens))
            fits = within_budget(
                verdict.budget_left - rejected,
                prices,
                admitted.most_computed,
                answers,
                self._expected,
            )
            if fits is not None:
                admitted = admitted.shortened(fits)
                verdict = await self._asked_on(admitted)
        if isinstance(verdict, Denied):
            raise refusal(verdict, self._demand(admitted), admitted)
        self.hold(verdict)
        return admitted

    def settles(self, used: Callable[[], TokenCounts]) -> None:
        """Set `used`, which `give_back` calls to learn which tokens to charge."""
        self._used = used

    async def give_back(self) -> None:
        """Give back streams, body and hold, and settle the use. A second call does nothing."""
        choices, self._choices = self._choices, 0
        if choices:
            self._permits.streams.give_back(self.caller.tenant_id, choices)
        self.body.release()
        hold, self._hold = self._hold, None
        if hold is not None:
            used = self._used()
            if self._unset and used.generated:
                self._permits.lengths.add(self.caller.tenant_id, used.generated // self._unset)
            await self._permits.charge(hold, self._amount(used))

    async def _asked_on(self, admitted: AdmittedRequest) -> Verdict:
        return await self._permits.asked(self._demand(admitted))

    def _demand(self, admitted: AdmittedRequest) -> Demand:
        """Compute the demand of `admitted`, which replaces the demand made at the request's start.

        All tokens of a prediction may be rejected. Rejected tokens are charged like generated
        tokens.
        """
        assert self._hold is not None
        begun = self._hold.demand
        longest = [generate.sampling.max_tokens for generate in admitted.generates]
        likely = sum(min(one, self._expected) for one in longest) if self._unset else sum(longest)
        likely += admitted.prediction_tokens
        computed = admitted.most_computed
        tokens = of_the_rate(begun.limits, admitted.prompt_tokens + likely, computed + likely)
        most = sum(longest) + admitted.prediction_tokens
        cost = self._permits.prices.cost(TokenCounts(computed, generated=most))
        return msgspec.structs.replace(begun, most=Amount(tokens, cost), begun=begun.most)

    @property
    def _expected(self) -> int:
        return self._permits.lengths.expected(self.caller.tenant_id)

    def _amount(self, tokens: TokenCounts) -> Amount:
        return Amount(tokens.worked, self._permits.prices.cost(tokens))


def _counts_tokens(demand: Demand) -> bool:
    limits = demand.limits
    return limits.tokens_per_minute is not None or limits.budget is not None
