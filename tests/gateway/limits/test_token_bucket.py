"""An account's counts of requests that other gateways admitted; `test_contract` tests everything
else.
"""

from __future__ import annotations

import msgspec
import pytest

from gateway.limits.limiter import Amount, Demand, Denied, Granted
from gateway.limits.token_bucket import (
    MAX_RUNNING,
    ONE,
    Account,
    LimitLevels,
    Moment,
    refusal_of,
)
from gateway.tenant_limits import Budget, Limits

LIMITS = Limits(requests_per_minute=6, tokens_per_minute=600)
MONTH = 24_000


def at(seconds: float) -> Moment:
    return Moment(round(seconds * 1e6), MONTH)


def demand(name: str, limits: Limits = LIMITS, most: Amount | None = None) -> Demand:
    return Demand(name, "tn_a", limits, most or Amount())


class TestOwed:
    def test_it_fills_the_buckets_as_if_it_had_been_asked_for_here(self) -> None:
        account = Account()
        account.owe(LIMITS, 5, 400, at(100))
        levels = account.levels(LIMITS)
        assert (levels.requests, levels.tokens) == (5 * ONE, 400 * ONE)
        granted = account.reserve(demand("a", most=Amount(tokens=200)), at(100))
        assert isinstance(granted, Granted)
        refused = account.reserve(demand("b"), at(100))
        assert isinstance(refused, Denied)
        assert (refused.reason, refused.retry_after_s) == ("requests", 10.0)

    def test_a_debt_drains_only_from_the_time_it_was_added(self) -> None:
        account = Account()
        account.owe(LIMITS, 6, 600, at(100))
        # half of the debt has drained, and the same amount is added
        account.owe(LIMITS, 3, 300, at(130))
        levels = account.levels(LIMITS)
        assert (levels.requests, levels.tokens) == (6 * ONE, 600 * ONE)

    def test_a_debt_never_exceeds_the_bucket_s_capacity(self) -> None:
        """Cap a debt: however many requests other gateways admitted, a wait is never longer than a
        burst.
        """
        account = Account()
        account.owe(LIMITS, 1000, 100_000, at(100))
        assert isinstance(account.reserve(demand("a"), at(109.9)), Denied)
        assert isinstance(account.reserve(demand("a"), at(110)), Granted)

    def test_what_has_no_limit_is_not_counted(self) -> None:
        account = Account()
        account.owe(Limits(max_concurrent=1), 1000, 100_000, at(100))
        assert isinstance(account.reserve(demand("a"), at(100)), Granted)


@pytest.mark.parametrize("spent", [0, 1])
def test_a_budget_is_spent_to_its_last_micro_unit_and_no_further(spent: int) -> None:
    limits = Limits(budget=Budget(units=1.0))
    account = Account()
    first = account.reserve(demand("a", limits, Amount(cost=1_000_000)), at(1))
    assert isinstance(first, Granted)
    account.charge(first.hold, Amount(cost=spent), at(2))
    rest = account.reserve(demand("b", limits, Amount(cost=1_000_000 - spent)), at(3))
    assert isinstance(rest, Granted)
    assert isinstance(account.reserve(demand("c", limits, Amount(cost=1)), at(3)), Denied)


@pytest.mark.parametrize(
    ("limits", "most"),
    [(Limits(tokens_per_minute=1), MAX_RUNNING), (Limits(max_concurrent=MAX_RUNNING + 1), None)],
)
def test_a_tenant_with_limits_has_a_bound_on_what_runs(limits: Limits, most: int | None) -> None:
    wanted = demand("a", limits)
    most = most or MAX_RUNNING + 1
    assert refusal_of(wanted, LimitLevels(0, 0, most - 1, 0)) is None
    refused = refusal_of(wanted, LimitLevels(0, 0, most, 0))
    assert refused is not None
    assert refused.reason == "concurrent"
    begun = msgspec.structs.replace(wanted, begun=Amount())
    assert refusal_of(begun, LimitLevels(0, 0, most, 0)) is None, "it runs already"
