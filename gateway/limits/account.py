"""One tenant's use of its limits, and every decision about it: pure, in whole numbers.

    requests   a bucket that is filled when a request is admitted
    tokens     a bucket that is filled when tokens are settled; tokens that are reserved until then
               are in `held_tokens`, which counts as filling the bucket and does not drain
    holds      the running requests, each with the time at which it lapses
    budgets    by period: what is spent, and what is reserved of it

So the tokens that are settled within any time t are at most rate * t + burst, whatever was asked
for; and what is spent is never more than the budget.

Times are microseconds of a monotonic clock; `month` counts calendar months. Knows: numbers. Does
not know: clocks, or where an account is kept. `scripts` has the same decisions in Lua.
"""

from __future__ import annotations

import msgspec

from gateway.limits.bucket import ONE, Bucket, capacity, wait_s
from gateway.limits.limiter import HOLD_S, Amount, Demand, Granted, Hold, Reason, Refused, Verdict
from gateway.limits.limits import Limits
from gateway.limits.prices import MICRO
from gateway.limits.standing import Allowance, Standing

HOLD_US = int(HOLD_S * 1_000_000)
CONCURRENT_RETRY_S = 1.0  # nobody knows when a request will end


class Moment(msgspec.Struct, frozen=True):
    """When something is decided."""

    now: int  # microseconds
    month: int  # months since year 0


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A request that runs."""

    until: int
    tokens: int
    cost: int
    period: str | None


class Spending(msgspec.Struct, array_like=True):
    """One budget, in micro-units."""

    spent: int = 0
    held: int = 0
    month: int = 0

    def turn(self, month: int) -> None:
        """Begin a new month; if the calendar goes back, nothing is given back."""
        if month > self.month:
            self.spent, self.month = 0, month


class Account(msgspec.Struct):
    """All that is remembered of one tenant."""

    requests: Bucket = Bucket()
    tokens: Bucket = Bucket()
    held_tokens: int = 0
    holds: dict[str, Held] = {}
    budgets: dict[str, Spending] = {}

    def reserve(self, demand: Demand, moment: Moment) -> Verdict:
        """Reserve everything that `demand` needs, or nothing."""
        limits = demand.limits
        self._bring_up(limits, moment)
        refusal = refusal_of(demand, self.levels(limits))
        if refusal is not None:
            return refusal
        if limits.requests_per_minute is not None:
            self.requests = Bucket(self.requests.level + ONE, self.requests.at)
        self._hold(demand, moment)
        return Granted(Hold(demand), standing_of(limits, self.levels(limits)))

    def settle(self, hold: Hold, used: Amount, moment: Moment) -> None:
        """Release `hold` and count what was used."""
        limits = hold.demand.limits
        self._bring_up(limits, moment)
        held = self.holds.pop(hold.demand.id, None)
        if held is not None:
            self.held_tokens -= held.tokens
            self._pay(held, used.cost)
        rate = limits.tokens_per_minute
        if rate is not None:
            self.tokens = self.tokens.filled(used.tokens, capacity(rate, limits.burst_s))

    def renew(self, hold: Hold, moment: Moment) -> None:
        """Postpone the time at which a hold lapses."""
        held = self.holds.get(hold.demand.id)
        if held is not None:
            until = moment.now + HOLD_US
            self.holds[hold.demand.id] = msgspec.structs.replace(held, until=until)

    def owe(self, limits: Limits, requests: int, tokens: int, moment: Moment) -> None:
        """Count what was admitted elsewhere, without a decision; buckets become at most full."""
        self._bring_up(limits, moment)
        if limits.requests_per_minute is not None:
            room = capacity(limits.requests_per_minute, limits.burst_s)
            self.requests = self.requests.filled(requests, room)
        if limits.tokens_per_minute is not None:
            room = capacity(limits.tokens_per_minute, limits.burst_s)
            self.tokens = self.tokens.filled(tokens, room)

    def levels(self, limits: Limits) -> Levels:
        """How much is taken now."""
        spending = self._spending(limits)
        return Levels(
            self.requests.level,
            self.tokens.level + self.held_tokens * ONE,
            len(self.holds),
            spending.spent + spending.held,
        )

    def _hold(self, demand: Demand, moment: Moment) -> None:
        budget = demand.limits.budget
        period = None if budget is None else budget.period
        most = demand.most
        until = moment.now + HOLD_US
        self.holds[demand.id] = Held(until, most.tokens, most.cost, period)
        self.held_tokens += most.tokens
        if period is not None:
            self.budgets.setdefault(period, Spending()).held += most.cost

    def _bring_up(self, limits: Limits, moment: Moment) -> None:
        """Drain buckets and let holds lapse up to `moment`."""
        self.requests = self.requests.drained(limits.requests_per_minute or 0, moment.now)
        self.tokens = self.tokens.drained(limits.tokens_per_minute or 0, moment.now)
        if limits.budget is not None:
            spending = self.budgets.setdefault(limits.budget.period, Spending())
            if limits.budget.period == "month":
                spending.turn(moment.month)
        self._let_lapse(moment.now)

    def _let_lapse(self, now: int) -> None:
        for name, held in list(self.holds.items()):
            if held.until <= now:
                del self.holds[name]
                self.held_tokens -= held.tokens
                self._pay(held, held.cost)
            elif held.until > now + HOLD_US:  # the clock has jumped back
                self.holds[name] = msgspec.structs.replace(held, until=now + HOLD_US)

    def _pay(self, held: Held, cost: int) -> None:
        if held.period is not None:
            spending = self.budgets[held.period]
            spending.held -= held.cost
            spending.spent += cost

    def _spending(self, limits: Limits) -> Spending:
        if limits.budget is None:
            return Spending()
        return self.budgets.get(limits.budget.period, Spending())


class Levels(msgspec.Struct, frozen=True, array_like=True):
    """How much of each limit is taken: bucket levels, running requests, micro-units."""

    requests: int
    tokens: int
    running: int
    budget: int


def refusal_of(demand: Demand, levels: Levels) -> Refused | None:
    """The first limit that `demand` exceeds; None if it exceeds none."""
    limits, standing = demand.limits, standing_of(demand.limits, levels)

    def refused(reason: Reason, retry_after_s: float | None) -> Refused:
        return Refused(reason, standing, retry_after_s)

    if limits.budget is not None and levels.budget + demand.most.cost > limits.budget.units * MICRO:
        return refused("budget", None)
    rates: tuple[tuple[Reason, int | None, int, int], ...] = (
        ("requests", limits.requests_per_minute, levels.requests, ONE),
        ("tokens", limits.tokens_per_minute, levels.tokens, demand.most.tokens * ONE),
    )
    for reason, rate, level, wanted in rates:
        if rate is None:
            continue
        room = capacity(rate, limits.burst_s)
        if wanted > room:
            return refused(reason, None)
        if level + wanted > room:
            return refused(reason, wait_s(level + wanted - room, rate))
    if limits.max_concurrent is not None and levels.running >= limits.max_concurrent:
        return refused("concurrent", CONCURRENT_RETRY_S)
    return None


def standing_of(limits: Limits, levels: Levels) -> Standing:
    """What is left of the rates, for the tenant."""
    return Standing(
        _allowance(limits.requests_per_minute, limits.burst_s, levels.requests),
        _allowance(limits.tokens_per_minute, limits.burst_s, levels.tokens),
    )


def _allowance(rate: int | None, burst_s: float | None, level: int) -> Allowance | None:
    if rate is None:
        return None
    remaining = max(0, capacity(rate, burst_s) - level) // ONE
    return Allowance(rate, remaining, wait_s(level, rate))
