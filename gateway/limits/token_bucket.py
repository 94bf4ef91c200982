"""A tenant's use of its limits, and every decision about it, as pure code on whole numbers.

    requests   a bucket that is filled when a request is admitted
    tokens     a bucket that is filled when tokens are settled; tokens that are reserved until then
               are in `held_tokens`, which counts as filling the bucket and does not drain
    holds      the running requests, each with the time at which it lapses (`holds`)
    budgets    by period: the spent and the reserved micro-units

Within any time t, at most rate * t + burst tokens are settled. Running requests may add the tokens
that they needed beyond their reservations. These tokens overfill the bucket, and no request begins
until the excess has drained too. The spending never exceeds the budget.

Times are microseconds of a monotonic clock, and `month` counts calendar months. `scripts` has the
same decisions in Lua.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.limits.holds import Held, Holds, MemoryHolds
from gateway.limits.limiter import HOLD_S, Amount, Demand, Denied, Granted, Hold, Verdict
from gateway.tenant_limits import MICRO, Allowance, Limits, RateStatus, Reason

ONE = 60_000_000  # level that a single request or token adds to a bucket
MAX_LEVEL = 9_000_000_000_000_000  # maximum level of an overfull bucket, still exact in a double
HOLD_US = int(HOLD_S * 1_000_000)
MAX_RUNNING = 8192  # concurrent requests of a tenant without this limit
# seconds after which to retry, as nobody knows when a running request will end
CONCURRENT_RETRY_S = 1.0


class Bucket(msgspec.Struct, frozen=True):
    """A leaky bucket in whole numbers: filled by use, drained at the rate (GCRA).

    This is the generic cell rate algorithm in its second form (ITU-T I.371, "continuous-state leaky
    bucket"). The theoretical arrival time of the first form is `at + level / rate`. A level is
    exact, in Python and in Lua's doubles. A time in fractions of a period would not be exact.

    `level` is in sixty-millionths of a request or token. At `rate` a minute, `rate` of these drain
    each microsecond. `level` is the level at the time `at`, in microseconds of any monotonic clock.
    If the clock jumps back, time counts from the new reading on. The jump gives no tenant credit
    and locks no tenant out. If the clock jumps ahead, the bucket drains once, which admits at most
    one burst.
    """

    level: int = 0
    at: int = 0

    def drained(self, rate: int, now: int) -> Bucket:
        """Drain the bucket up to `now`."""
        elapsed = max(0, now - self.at)
        return Bucket(max(0, self.level - elapsed * rate), now)

    def filled(self, amount: int, capacity: int) -> Bucket:
        """Return the bucket with `amount` added, but with a level of at most `capacity`."""
        return Bucket(min(self.level + amount * ONE, max(capacity, self.level)), self.at)


def capacity(rate: int, burst_s: float | None) -> int:
    """Return a full bucket's level, at least ONE.

    The level is the use of `burst_s` seconds (None: 60) at the rate.
    """
    return max(ONE, rate * round((60.0 if burst_s is None else burst_s) * 1_000_000))


def wait_s(level: int, rate: int) -> float:
    """Return the seconds until the bucket has drained by `level`."""
    return max(0, level) / rate / 1_000_000


class Moment(msgspec.Struct, frozen=True):
    """The time of a decision: `now` in microseconds, and the calendar month."""

    now: int
    month: int  # months since year 0


class Spending(msgspec.Struct, array_like=True):
    """The spent and reserved parts of one budget, in micro-units."""

    spent: int = 0
    held: int = 0
    month: int = 0

    def turn(self, month: int) -> None:
        """Begin a new month if `month` is later. The month before changes nothing.

        If `month` is earlier still, a clock was ahead before. The month is then set back, so that
        the next month begins as usual.
        """
        if month > self.month:
            self.spent, self.month = 0, month
        elif month < self.month - 1:
            self.month = month


class Sums(msgspec.Struct):
    """The sums of one tenant's use, without the holds of single requests.

    The sums are small, however many requests run.
    """

    requests: Bucket = Bucket()
    tokens: Bucket = Bucket()
    held_tokens: int = 0
    running: int = 0
    budgets: dict[str, Spending] = {}


class Account(Sums):
    """The buckets, budgets and holds of one tenant."""

    holds: Holds = msgspec.field(default_factory=MemoryHolds)

    def reserve(self, demand: Demand, moment: Moment) -> Verdict:
        """Reserve everything that `demand` needs, or nothing."""
        limits = demand.limits
        self._bring_up(limits, moment)
        self._drain_requests(limits, moment)
        refusal = refusal_of(demand, self._levels_without(demand))
        if refusal is not None:
            return refusal
        if limits.requests_per_minute is not None and demand.begun is None:
            self.requests = Bucket(self.requests.level + ONE, self.requests.at)
        self._hold(demand, moment)
        return Granted(Hold(demand), status_of(limits, self.levels(limits)))

    def charge(self, hold: Hold, used: Amount, moment: Moment) -> None:
        """Release `hold` and charge the tokens and cost that the request used."""
        limits = hold.demand.limits
        self._bring_up(limits, moment)
        self._release(hold.demand.id, used.cost)
        if limits.tokens_per_minute is not None:
            self.tokens = self.tokens.filled(used.tokens, MAX_LEVEL)

    def renew(self, holds: Sequence[Hold], moment: Moment) -> None:
        """Postpone the time at which holds lapse."""
        until = moment.now + HOLD_US
        self.holds.shorten(until)
        self.holds.renew([hold.demand.id for hold in holds], until)

    def owe(self, limits: Limits, requests: int, tokens: int, moment: Moment) -> None:
        """Count requests and tokens that another limiter has admitted.

        A bucket whose limit is used up stays as it is.
        """
        self._bring_up(limits, moment)
        self._drain_requests(limits, moment)
        if limits.requests_per_minute is not None:
            room = capacity(limits.requests_per_minute, limits.burst_s)
            self.requests = self.requests.filled(requests, room)
        if limits.tokens_per_minute is not None:
            room = capacity(limits.tokens_per_minute, limits.burst_s)
            self.tokens = self.tokens.filled(tokens, room)

    def levels(self, limits: Limits) -> LimitLevels:
        """Return the used amount of each limit now."""
        spending = self._spending(limits)
        return LimitLevels(
            self.requests.level,
            self.tokens.level + self.held_tokens * ONE,
            self.running,
            spending.spent + spending.held,
        )

    def _levels_without(self, demand: Demand) -> LimitLevels:
        levels = self.levels(demand.limits)
        held = None if demand.begun is None else self.holds.get(demand.id)
        if held is None:
            return levels
        return LimitLevels(
            levels.requests,
            levels.tokens - held.tokens * ONE,
            levels.running - 1,
            levels.budget - (0 if held.period is None else held.cost),
        )

    def _hold(self, demand: Demand, moment: Moment) -> None:
        self._release(demand.id, 0)  # the request's earlier hold costs nothing
        budget = demand.limits.budget
        period = None if budget is None else budget.period
        most = demand.most
        until = moment.now + HOLD_US
        self.holds.put(demand.id, Held(until, most.tokens, most.cost, period))
        self.running += 1
        self.held_tokens += most.tokens
        if period is not None:
            self.budgets.setdefault(period, Spending()).held += most.cost

    def _release(self, request_id: str, cost: int) -> None:
        held = self.holds.take(request_id)
        if held is not None:
            self._count_ended(held, cost)

    def _count_ended(self, held: Held, cost: int) -> None:
        self.running -= 1
        self.held_tokens -= held.tokens
        if held.period is not None:
            spending = self.budgets[held.period]
            spending.held -= held.cost
            spending.spent += cost

    def _bring_up(self, limits: Limits, moment: Moment) -> None:
        self.tokens = self.tokens.drained(limits.tokens_per_minute or 0, moment.now)
        if limits.budget is not None:
            spending = self.budgets.setdefault(limits.budget.period, Spending())
            if limits.budget.period == "month":
                spending.turn(moment.month)
        self._let_lapse(moment.now)

    def _drain_requests(self, limits: Limits, moment: Moment) -> None:
        self.requests = self.requests.drained(limits.requests_per_minute or 0, moment.now)

    def _let_lapse(self, now: int) -> None:
        for held in self.holds.lapse(now):
            self._count_ended(held, held.cost)
        self.holds.shorten(now + HOLD_US)  # the clock may have jumped back

    def _spending(self, limits: Limits) -> Spending:
        if limits.budget is None:
            return Spending()
        return self.budgets.get(limits.budget.period, Spending())


class LimitLevels(msgspec.Struct, frozen=True, array_like=True):
    """The used amount of each limit: bucket levels, running requests, micro-units."""

    requests: int
    tokens: int
    running: int
    budget: int


def refusal_of(demand: Demand, levels: LimitLevels) -> Denied | None:
    """Make the refusal of `demand` by the first limit that it exceeds; None if it exceeds none."""
    limits, standing = demand.limits, status_of(demand.limits, levels)

    def refused(reason: Reason, retry_after_s: float | None) -> Denied:
        return Denied(reason, standing, retry_after_s)

    if limits.budget is not None and levels.budget + demand.most.cost > limits.budget.units * MICRO:
        left = int(limits.budget.units * MICRO) - levels.budget
        return Denied("budget", standing, None, max(0, left))
    begins = demand.begun is None
    rates: tuple[tuple[Reason, int | None, int, int], ...] = (
        ("requests", limits.requests_per_minute if begins else None, levels.requests, ONE),
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
    if begins and levels.running >= most_running(limits):
        return refused("concurrent", CONCURRENT_RETRY_S)
    return None


def most_running(limits: Limits) -> int:
    """Return the maximum number of a tenant's concurrent requests, by default MAX_RUNNING."""
    return MAX_RUNNING if limits.max_concurrent is None else limits.max_concurrent


def status_of(limits: Limits, levels: LimitLevels) -> RateStatus:
    """Return how many requests and tokens the tenant's rates leave now."""
    return RateStatus(
        _allowance(limits.requests_per_minute, limits.burst_s, levels.requests),
        _allowance(limits.tokens_per_minute, limits.burst_s, levels.tokens),
    )


def _allowance(rate: int | None, burst_s: float | None, level: int) -> Allowance | None:
    if rate is None:
        return None
    remaining = max(0, capacity(rate, burst_s) - level) // ONE
    return Allowance(rate, remaining, wait_s(level, rate))
