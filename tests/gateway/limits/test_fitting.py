"""The longest answers with which a request still fits are found, exact to one token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.fitting import advice, at_once, within_budget, within_rate
from gateway.tenant_limits import Limits, Prices, TokenCounts

A_MINUTE = Limits(tokens_per_minute=3000)
PRICES = Prices(computed=1.0, cached=0.1, generated=4.0)


def test_a_rate_lets_as_much_come_at_once_as_its_burst() -> None:
    assert at_once(A_MINUTE) == 3000
    assert at_once(Limits(tokens_per_minute=3000, burst_s=10)) == 500
    assert at_once(Limits(max_concurrent=1)) is None


def test_the_prompt_and_all_answers_fit_at_once() -> None:
    assert within_rate(A_MINUTE, 100, 1) == 2900
    assert within_rate(A_MINUTE, 100, 3) == 966
    assert within_rate(Limits(), 100, 3) is None


def test_an_answer_has_one_token_at_least_though_it_does_not_fit() -> None:
    assert within_rate(A_MINUTE, 3000, 1) == 1


def test_half_of_a_budget_is_left_to_others_unless_the_answer_is_likely_to_need_it() -> None:
    left = PRICES.cost(TokenCounts(computed=100, generated=1000))
    assert within_budget(left, PRICES, 100, 1, expected=256) == 500
    assert within_budget(left, PRICES, 100, 1, expected=700) == 700
    assert within_budget(left, PRICES, 100, 1, expected=5000) == 1000
    assert within_budget(left, PRICES, 100, 2, expected=256) == 256


@pytest.mark.parametrize("left", [0, 100, 103])
def test_a_budget_that_has_no_room_for_a_token_fits_none(left: int) -> None:
    assert within_budget(left, PRICES, 100, 1, expected=256) is None
    assert within_budget(104, PRICES, 100, 1, expected=256) == 1


def test_where_answers_cost_nothing_no_shorter_one_helps() -> None:
    assert within_budget(1000, Prices(generated=0.0), 100, 1, expected=256) is None


@given(
    left=st.integers(0, 10**7),
    prompt=st.integers(0, 5000),
    answers=st.integers(1, 8),
    expected=st.integers(1, 5000),
    price=st.floats(0.001, 1e6),
)
def test_what_a_budget_has_room_for_never_costs_more_than_is_left(
    left: int, prompt: int, answers: int, expected: int, price: float
) -> None:
    prices = Prices(generated=price)
    most = within_budget(left, prices, prompt, answers, expected)
    if most is not None:
        assert prices.cost(TokenCounts(computed=prompt, generated=most * answers)) <= left + 1


def test_advice_names_the_number_to_set() -> None:
    assert advice(A_MINUTE, 34, 1, 4096) == (
        ", and 3000 fit at once: set `max_tokens` to 2966 or less, or have a limit of 4096 tokens "
        "a minute set"
    )
    slow = Limits(tokens_per_minute=600, burst_s=10)
    assert advice(slow, 400, 2, 500) == (
        ", and 100 fit at once: have a limit of 3000 tokens a minute set"
    )
