"""Every kind of store keeps the limits exactly: in a process, in a file, in a real Redis."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from gateway.limits.limiter import HOLD_S, Amount, Demand, Denied, Granted, Verdict
from gateway.tenant_limits import MICRO, Allowance, Budget, Limits, RateStatus
from tests.gateway.limits.homes import NOTHING, START, Home

# two requests at once, then one every ten seconds
A_MINUTE = Limits(requests_per_minute=6, burst_s=20)
TOKENS = Limits(tokens_per_minute=600)  # ten tokens per second
UNITS = Limits(budget=Budget(units=1.0))


def units(amount: float) -> Amount:
    return Amount(cost=int(amount * MICRO))


async def test_requests_come_at_the_rate_behind_a_burst(home: Home) -> None:
    for name in "ab":
        assert await home.grants(A_MINUTE, name=name)
    refused = await home.refused(A_MINUTE, name="c")
    assert (refused.reason, refused.retry_after_s) == ("requests", 10.0)
    home.advance(9.999)
    assert await home.refuses(A_MINUTE, name="c")
    home.advance(0.001)
    assert await home.grants(A_MINUTE, name="c")
    assert await home.refuses(A_MINUTE, name="d")


async def test_a_refused_request_costs_nothing(home: Home) -> None:
    for name in "ab":
        assert await home.grants(A_MINUTE, name=name)
    for number in range(20):
        assert await home.refuses(A_MINUTE, name=f"again{number}")
    home.advance(10)
    assert await home.grants(A_MINUTE, name="c")


async def test_the_standing_tells_what_is_left(home: Home) -> None:
    limits = Limits(requests_per_minute=6, tokens_per_minute=600, burst_s=60)
    granted = await home.granted(limits, Amount(tokens=150), name="a")
    assert granted.standing == RateStatus(
        requests=Allowance(limit=6, remaining=5, reset_s=10.0),
        tokens=Allowance(limit=600, remaining=450, reset_s=15.0),
    )


async def test_tokens_count_as_computed_not_as_asked(home: Home) -> None:
    granted = await home.granted(TOKENS, Amount(tokens=500), name="a")
    assert (await home.refused(TOKENS, Amount(tokens=101), name="b")).reason == "tokens"
    await home.limiter.charge(granted.hold, Amount(tokens=20))
    after = await home.granted(TOKENS, Amount(tokens=580), name="c")
    assert after.standing.tokens is not None
    assert after.standing.tokens.remaining == 0


async def test_what_is_reserved_does_not_drain_but_what_was_computed_does(home: Home) -> None:
    granted = await home.granted(TOKENS, Amount(tokens=600), name="a")
    home.advance(30)
    assert await home.refuses(TOKENS, Amount(tokens=1), name="b")
    await home.limiter.charge(granted.hold, Amount(tokens=600))
    assert await home.refuses(TOKENS, Amount(tokens=1), name="b")
    home.advance(30)
    assert await home.refuses(TOKENS, Amount(tokens=301), name="b")
    assert await home.grants(TOKENS, Amount(tokens=300), name="b")


async def test_what_was_used_beyond_what_was_reserved_is_paid_back_in_full(home: Home) -> None:
    granted = await home.granted(TOKENS, Amount(tokens=100), name="a")
    await home.limiter.charge(granted.hold, Amount(tokens=900))
    refused = await home.refused(TOKENS, Amount(tokens=1), name="b")
    assert refused.retry_after_s == pytest.approx(30.1)
    home.advance(30)
    assert await home.refuses(TOKENS, Amount(tokens=1), name="c")
    home.advance(0.1)
    assert await home.grants(TOKENS, Amount(tokens=1), name="d")


async def test_a_refusal_for_the_budget_says_what_is_left_of_it(home: Home) -> None:
    await home.granted(UNITS, units(0.9), name="a")
    assert (await home.refused(UNITS, units(0.2), name="b")).budget_left == units(0.1).cost
    assert await home.grants(UNITS, units(0.1), name="c")
    assert (await home.refused(UNITS, units(0.2), name="d")).budget_left == 0


async def test_a_request_larger_than_the_burst_gets_no_retry_after(home: Home) -> None:
    refused = await home.refused(TOKENS, Amount(tokens=601), name="a")
    assert (refused.reason, refused.retry_after_s) == ("tokens", None)


async def test_only_so_many_run_at_once(home: Home) -> None:
    limits = Limits(max_concurrent=2)
    first = await home.granted(limits, name="a")
    assert await home.grants(limits, name="b")
    refused = await home.refused(limits, name="c")
    assert refused.reason == "concurrent"
    assert refused.retry_after_s
    await home.limiter.charge(first.hold, Amount())
    assert await home.grants(limits, name="c")
    assert await home.refuses(limits, name="d")


async def test_settling_twice_gives_back_once(home: Home) -> None:
    limits = Limits(max_concurrent=2, budget=Budget(units=1.0))
    first = await home.granted(limits, units(0.4), name="a")
    assert await home.grants(limits, units(0.4), name="b")
    for _ in range(2):
        await home.limiter.charge(first.hold, units(0.4))
    assert await home.grants(limits, units(0.2), name="c")
    assert await home.refuses(limits, name="d")


async def test_a_budget_is_spent_by_what_was_used(home: Home) -> None:
    granted = await home.granted(UNITS, units(0.9), name="a")
    refused = await home.refused(UNITS, units(0.2), name="b")
    assert (refused.reason, refused.retry_after_s) == ("budget", None)
    await home.limiter.charge(granted.hold, units(0.3))
    assert await home.refuses(UNITS, units(0.700001), name="b")
    assert await home.grants(UNITS, units(0.7), name="b")


async def test_a_months_budget_is_whole_again_in_the_next(home: Home) -> None:
    forever = Limits(budget=Budget(units=1.0, period="total"))
    for limits, tenant in ((UNITS, "tn_a"), (forever, "tn_b")):
        granted = await home.granted(limits, units(1), name="a", tenant=tenant)
        await home.limiter.charge(granted.hold, units(1))
        assert await home.refuses(limits, units(0.1), name="b", tenant=tenant)
    home.advance(3600)  # the month of November ends
    assert await home.grants(UNITS, units(1), name="c")
    assert await home.refuses(forever, units(0.1), name="c", tenant="tn_b")


@pytest.mark.parametrize("year", [2027, 2028, 2099, 2100])
async def test_a_month_ends_with_the_calendar_s(home: Home, year: int) -> None:
    """Renew a month's budget at the calendar month's end, also in leap years and at a century.

    In the month's last second the budget is still spent.
    """
    now = datetime(year, 1, 1, tzinfo=UTC).timestamp()
    home.advance(now - START)
    for number in range(1, 14):
        granted = await home.granted(UNITS, units(1), name=f"first{number}")
        await home.limiter.charge(granted.hold, units(1))
        begins = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()
        home.advance(begins - 1 - now)
        assert await home.refuses(UNITS, units(0.1), name=f"last{number}")
        home.advance(1)
        now = begins


async def test_a_calendar_that_goes_back_gives_no_budget(home: Home) -> None:
    home.advance(3600)
    granted = await home.granted(UNITS, units(1), name="a")
    await home.limiter.charge(granted.hold, units(1))
    home.advance(-3600)
    assert await home.refuses(UNITS, units(0.1), name="b")
    home.advance(3600)
    assert await home.refuses(UNITS, units(0.1), name="b")


async def test_a_calendar_that_was_years_ahead_once_keeps_no_month_back(home: Home) -> None:
    """Return no budget after the clock was years ahead and is right again.

    The next month begins as usual.
    """
    month, years = 31 * 86400, 10 * 366 * 86400
    for name, moved in (("before", 0), ("ahead", years)):
        home.advance(moved)
        granted = await home.granted(UNITS, units(1), name=name)
        await home.limiter.charge(granted.hold, units(1))
    home.advance(-years)
    assert await home.refuses(UNITS, units(0.1), name="back")
    home.advance(month)
    assert await home.grants(UNITS, units(1), name="next")


async def test_all_limits_are_taken_or_none(home: Home) -> None:
    limits = Limits(
        requests_per_minute=60,
        tokens_per_minute=600,
        max_concurrent=1,
        budget=Budget(units=1.0),
    )
    fits = Amount(tokens=100, cost=100_000)
    granted = await home.granted(limits, fits, name="a")
    before = (await home.refused(limits, fits, name="b")).standing
    for number in range(5):
        assert (await home.refused(limits, fits, name=f"c{number}")).standing == before
    await home.limiter.charge(granted.hold, fits)
    for cost, reason in ((900_001, "budget"), (900_000, None)):
        verdict = await home.reserve(limits, Amount(tokens=500, cost=cost), name=f"d{cost}")
        assert (verdict.reason if isinstance(verdict, Denied) else None) == reason
        if reason is not None:
            assert verdict.standing.requests == before.requests


async def test_what_a_killed_gateway_held_lapses(home: Home) -> None:
    limits = Limits(tokens_per_minute=600, max_concurrent=1)
    assert await home.grants(limits, Amount(tokens=600), name="a")
    home.advance(HOLD_S - 1)
    assert await home.refuses(limits, Amount(tokens=600), name="b")
    home.advance(1)
    assert await home.grants(limits, Amount(tokens=600), name="b")


async def test_a_renewed_hold_lasts_on_and_a_lapsed_one_does_not_come_back(home: Home) -> None:
    limits = Limits(max_concurrent=1)
    granted = await home.granted(limits, name="a")
    for _ in range(3):
        home.advance(HOLD_S - 1)
        await home.limiter.renew([granted.hold])
        assert await home.refuses(limits, name="b")
    home.advance(HOLD_S)
    assert await home.grants(limits, name="b")
    await home.limiter.renew([granted.hold])
    assert (await home.refused(limits, name="c")).reason == "concurrent"


async def test_a_budget_counts_a_lapsed_hold_whole(home: Home) -> None:
    granted = await home.granted(UNITS, units(0.9), name="a")
    home.advance(HOLD_S)
    assert await home.refuses(UNITS, units(0.2), name="b")
    # the charge is too late: its hold has lapsed
    await home.limiter.charge(granted.hold, units(0.1))
    assert await home.refuses(UNITS, units(0.2), name="b")
    assert await home.grants(UNITS, units(0.1), name="b")


async def test_a_clock_that_goes_back_blocks_for_one_hold_at_most(home: Home) -> None:
    limits = Limits(requests_per_minute=6, burst_s=20, max_concurrent=1)
    assert await home.grants(limits, name="a")
    home.advance(-3600)
    assert await home.refuses(limits, name="b")
    home.advance(HOLD_S - 1)
    assert await home.refuses(limits, name="b"), "nor does what runs lapse earlier for it"
    home.advance(1)
    assert await home.grants(limits, name="b")


async def test_tenants_do_not_touch_each_other(home: Home) -> None:
    limits = Limits(requests_per_minute=1, max_concurrent=1, budget=Budget(units=1.0))
    assert await home.grants(limits, units(1), name="a", tenant="tn_a")
    assert await home.refuses(limits, units(1), name="b", tenant="tn_a")
    assert await home.grants(limits, units(1), name="b", tenant="tn_b")


async def test_a_changed_limit_holds_at_once(home: Home) -> None:
    for name in "ab":
        assert await home.grants(A_MINUTE, name=name)
    raised = msgspec.structs.replace(A_MINUTE, burst_s=40)
    for name in "cd":
        assert await home.grants(raised, name=name)
    assert await home.refuses(raised, name="e")
    assert await home.grants(Limits(), name="f")


async def test_two_over_one_memory_share_it(home: Home) -> None:
    limits = Limits(max_concurrent=2, budget=Budget(units=1.0))
    first = await home.granted(limits, units(0.6), name="a")
    refused = await home.sibling.reserve(Demand("b", "tn_a", limits, units(0.6)))
    assert isinstance(refused, Denied)
    await home.sibling.charge(first.hold, units(0.2))
    assert isinstance(await home.sibling.reserve(Demand("b", "tn_a", limits, units(0.8))), Granted)


@pytest.mark.parametrize("used", [1.0, 0.5])
async def test_200_at_once_do_not_overshoot_a_budget_for_10(home: Home, used: float) -> None:
    limits = Limits(budget=Budget(units=10.0))

    async def one(number: int) -> int:
        limiter = (home.limiter, home.sibling)[number % 2]
        verdict = await limiter.reserve(Demand(f"r{number}", "tn_a", limits, units(1)))
        if isinstance(verdict, Denied):
            return 0
        await asyncio.sleep(0)
        await limiter.charge(verdict.hold, units(used))
        return int(used * MICRO)

    async def in_order(numbers: range) -> int:
        return sum([await one(number) for number in numbers])

    # 200 tasks in 8 lanes, few enough at a time that none times out.
    lanes = await asyncio.gather(*(in_order(range(lane, 200, 8)) for lane in range(8)))
    spent = sum(lanes)
    assert spent <= 10 * MICRO
    assert spent > 9 * MICRO


async def test_a_request_that_has_begun_reserves_its_tokens_without_being_counted_again(
    home: Home,
) -> None:
    limits = Limits(
        requests_per_minute=2, tokens_per_minute=100, max_concurrent=1, budget=Budget(units=0.001)
    )
    begun = await home.granted(limits, name="a")
    asks_on = msgspec.structs.replace(begun.hold.demand, begun=NOTHING)

    async def ask_on(most: Amount) -> Verdict:
        return await home.limiter.reserve(msgspec.structs.replace(asks_on, most=most))

    refused = await ask_on(Amount(tokens=101, cost=1))
    assert isinstance(refused, Denied)
    assert refused.reason == "tokens"
    assert await home.refuses(limits, name="b")  # the first request is still running
    spent = await ask_on(Amount(tokens=1, cost=1001))
    assert isinstance(spent, Denied)
    assert spent.reason == "budget"
    granted = await ask_on(Amount(tokens=60, cost=900))
    assert isinstance(granted, Granted)
    assert granted.standing.requests is not None
    assert granted.standing.requests.remaining == 1
    assert granted.standing.tokens is not None
    assert granted.standing.tokens.remaining == 40
    await home.limiter.charge(granted.hold, Amount(tokens=10, cost=200))
    other = await home.granted(limits, Amount(tokens=90, cost=800), name="c")
    await home.limiter.charge(other.hold, NOTHING)
    assert await home.refuses(limits, name="d")  # two requests have already been counted
