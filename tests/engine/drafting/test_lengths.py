"""Lengths of drafts, compared with a search through all lengths."""

from __future__ import annotations

from itertools import product

import pytest

from engine.drafting.acceptance import MOST_DRAFTS, Acceptance
from engine.drafting.lengths import Payoff


def speed(rows: int, chances: list[tuple[float, int]], lengths: list[int], cost: float) -> float:
    """Return the tokens per unit of step time, where a step costs 1 and a row `cost`."""
    gain = sum(
        sum(p**i for i in range(1, length + 1))
        for (p, _), length in zip(chances, lengths, strict=True)
    )
    return (rows + gain) / (1 + cost * (rows + sum(lengths)))


@pytest.mark.parametrize("cost", [0.001, 0.03, 0.2, 2.0])
@pytest.mark.parametrize("chances", [[(0.9, 6), (0.5, 6)], [(0.7, 5)], [(0.97, 5), (0.2, 6)]])
def test_the_choice_is_near_the_best(chances: list[tuple[float, int]], cost: float) -> None:
    chosen = Payoff(lambda rows: 1 + cost * rows).lengths(2, chances)
    each = [range(most + 1) for _, most in chances]
    best = max(speed(2, chances, list(lengths), cost) for lengths in product(*each))
    assert all(length <= most for length, (_, most) in zip(chosen, chances, strict=True))
    assert speed(2, chances, chosen, cost) > 0.95 * best


def test_more_rows_draft_less_where_rows_cost() -> None:
    payoff = Payoff(lambda rows: 1 + 0.05 * rows)
    drafted = [sum(payoff.lengths(rows, [(0.8, 16)] * rows)) / rows for rows in (1, 8, 32, 128)]
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[0] > 3
    assert drafted[-1] == 0


def test_without_predicted_seconds_likely_drafts_are_verified() -> None:
    for unknown in (None, 0.0):
        payoff = Payoff(lambda rows, unknown=unknown: unknown)  # type: ignore[misc]
        assert payoff.lengths(1, [(0.9, 8)])[0] > 4
        assert payoff.lengths(1, [(0.02, 8)]) == [0]
        assert payoff.can_pay(1)


def test_no_draft_is_longer_than_the_most() -> None:
    assert Payoff(lambda rows: 1.0).lengths(1, [(0.985, 100)]) == [MOST_DRAFTS]


def test_rows_and_drafts_together_fit_a_step() -> None:
    for most_rows in (4, 5, 8, 40, 1000):
        payoff = Payoff(lambda rows: 1.0, most_rows=most_rows)
        drafted = sum(payoff.lengths(4, [(0.9, 16)] * 4))
        assert drafted + 4 <= most_rows
        assert bool(drafted) == (most_rows >= 8)
        assert payoff.can_pay(4) == (most_rows >= 8), "else a step would wait for nothing"


def test_drafts_that_are_computed_twice_are_shorter() -> None:
    """A model with states computes accepted tokens twice. A draft may still be worth that."""
    chances = [(0.9, 16)] * 8
    once, twice = (
        sum(Payoff(lambda rows: 1 + 0.05 * rows, has_states=has).lengths(8, chances))
        for has in (False, True)
    )
    assert 0 < twice < once


def test_without_chances_there_is_nothing_to_choose() -> None:
    assert Payoff(lambda rows: 1.0).lengths(5, []) == []


def test_predictions_are_asked_for_now_and_then() -> None:
    asked = list[int]()

    def seconds(rows: int) -> float:
        asked.append(rows)
        return 1.0

    payoff = Payoff(seconds)
    for _ in range(1000):
        payoff.lengths(1, [(0.9, 4)])
    assert 3 * len(set(asked)) <= len(asked) <= 5 * len(set(asked))


def test_acceptance_follows_what_is_seen_and_forgets() -> None:
    acceptance = Acceptance(prior=0.6)
    assert acceptance.probability == pytest.approx(0.6)
    for _ in range(30):
        acceptance.learn(4, is_rejected=False)
    assert acceptance.probability > 0.95
    for _ in range(60):
        acceptance.learn(0, is_rejected=True)
    assert acceptance.probability < 0.2
    acceptance.learn(16, is_rejected=False)
    assert acceptance.probability > 0.3
