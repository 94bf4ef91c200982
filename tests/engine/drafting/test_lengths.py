"""The chosen lengths of drafts are near the best in a search through all lengths."""

from __future__ import annotations

import random
from itertools import pairwise, product

import numpy as np
import pytest

from engine.drafting.acceptance import MOST_DRAFTS, Acceptance, curves, gains
from engine.drafting.lengths import Payoff

GAINS = gains()


def curve_of(chance: float, matched: int = 32) -> int:
    """Return the acceptance curve after `matched` tokens whose first draft is accepted with nearly
    this chance.
    """
    first = curves(1)[:, 0]
    after = [Acceptance(scale).curve(matched) for scale in 2.0 ** np.arange(-3, 5.25, 0.25)]
    return min(after, key=lambda curve: abs(first[curve] - chance))


SURE, LIKELY, HALF, RARE = (
    curve_of(0.98),
    curve_of(0.8, matched=6),
    curve_of(0.5, matched=2),
    curve_of(0.02, matched=1),
)


def speed(rows: int, chances: list[tuple[int, int]], lengths: list[int], cost: float) -> float:
    """Return the tokens per unit of step time, if a step costs 1 and each token in it `cost`."""
    gain = sum(GAINS[curve][length] for (curve, _), length in zip(chances, lengths, strict=True))
    return (rows + gain) / (1 + cost * (rows + sum(lengths)))


@pytest.mark.parametrize("cost", [0.001, 0.03, 0.2, 2.0])
@pytest.mark.parametrize(
    "chances", [[(LIKELY, 6), (HALF, 6)], [(LIKELY, 5)], [(SURE, 5), (RARE, 6)]]
)
def test_the_choice_is_near_the_best(chances: list[tuple[int, int]], cost: float) -> None:
    chosen = Payoff(lambda rows: 1 + cost * rows).lengths(2, chances)
    each = [range(most + 1) for _, most in chances]
    best = max(speed(2, chances, list(lengths), cost) for lengths in product(*each))
    assert all(length <= most for length, (_, most) in zip(chosen, chances, strict=True))
    assert speed(2, chances, chosen, cost) > 0.95 * best


def test_more_rows_draft_less_where_rows_cost() -> None:
    payoff = Payoff(lambda rows: 1 + 0.05 * rows)
    drafted = [sum(payoff.lengths(rows, [(LIKELY, 16)] * rows)) / rows for rows in (1, 8, 32, 128)]
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[0] > 3
    assert drafted[-1] == 0


def test_without_predicted_seconds_likely_drafts_are_verified() -> None:
    for unknown in (None, 0.0):
        payoff = Payoff(lambda rows, unknown=unknown: unknown)  # type: ignore[misc]
        assert payoff.lengths(1, [(SURE, 8)])[0] > 4
        assert payoff.lengths(1, [(RARE, 8)]) == [0]
        assert payoff.can_pay(1)


def test_no_draft_is_longer_than_the_most() -> None:
    assert Payoff(lambda rows: 1.0).lengths(1, [(SURE, 100)]) == [MOST_DRAFTS]


def test_rows_and_drafts_together_fit_a_step() -> None:
    for most_rows in (4, 5, 8, 40, 1000):
        payoff = Payoff(lambda rows: 1.0, most_rows=most_rows)
        drafted = sum(payoff.lengths(4, [(curve_of(0.9, matched=6), 16)] * 4))
        assert drafted + 4 <= most_rows
        assert bool(drafted) == (most_rows >= 8)
        assert payoff.can_pay(4) == (most_rows >= 8), "else a step would wait for nothing"


@pytest.mark.parametrize("rows", [4, 16, 32, 64])
def test_many_sure_drafts_fill_the_step_in_equal_parts(rows: int) -> None:
    lengths = Payoff(lambda rows: 1.0, most_rows=256).lengths(rows, [(SURE, 100)] * rows)
    assert set(lengths) == {min(256 // rows - 1, MOST_DRAFTS)}


@pytest.mark.parametrize("seed", range(20))
def test_only_the_longest_drafts_are_cut_to_fit_a_step(seed: int) -> None:
    generator = random.Random(seed)
    chances = [
        (generator.choice([SURE, LIKELY, HALF, RARE]), generator.randrange(1, 2 * MOST_DRAFTS))
        for _ in range(generator.randrange(1, 60))
    ]
    rows, pending = len(chances) + generator.randrange(4), generator.randrange(3)
    most_rows = rows + generator.randrange(300)
    lengths = Payoff(lambda rows: 1.0, most_rows=most_rows).lengths(rows, chances, pending)
    assert rows + sum(lengths) <= most_rows
    free = Payoff(lambda rows: 1.0).lengths(rows, chances, pending)
    for length, (curve, size) in zip(lengths, chances, strict=True):
        assert 0 <= length <= max(min(size, MOST_DRAFTS) - pending, 0)
        if curve == SURE and length < min(size, MOST_DRAFTS) - pending:
            assert length == max(lengths), "no shorter draft of equal chances has more"
    if rows + sum(free) <= most_rows:
        assert lengths == free


def test_drafts_that_are_computed_twice_are_shorter() -> None:
    """With states, accepted tokens are computed again; a draft may still pay."""
    chances = [(SURE, 16)] * 8
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
        payoff.lengths(1, [(SURE, 4)])
    assert 3 * len(set(asked)) <= len(asked) <= 5 * len(set(asked))


def test_acceptance_follows_what_is_seen_and_forgets() -> None:
    first, acceptance = curves(1)[:, 0], Acceptance(1.0)
    chances = [first[acceptance.curve(4)]]
    for right, times in ((16, 30), (0, 60), (16, 8)):
        for _ in range(times):
            acceptance.learn(4, right, is_rejected=not right)
        chances.append(first[acceptance.curve(4)])
    start, good, bad, better = chances
    assert good > 0.9 > start > 0.6
    assert bad < 0.4 < better


def test_a_token_is_likelier_after_a_longer_match() -> None:
    chances, acceptance = curves(8), Acceptance(1.0)
    after = [chances[acceptance.curve(matched)] for matched in (1, 2, 3, 4, 8, 16, 32, 500)]
    assert all((left <= right).all() for left, right in pairwise(after))
    assert all((np.diff(each) >= 0).all() for each in after), "as each token lengthens the match"
    assert after[0][0] < 0.5 < 0.9 < after[-1][0]


@pytest.mark.parametrize("matched", [1, 2, 4, 9, 32, 100])
def test_at_first_the_odds_after_a_match_are_its_length_to_two(matched: int) -> None:
    length = min(matched, 32)
    assert curves(1)[Acceptance(1.0).curve(matched), 0] == pytest.approx(length / (length + 2))


def test_a_long_run_without_a_miss_counts_as_all_its_tokens() -> None:
    once, often = Acceptance(1.0), Acceptance(1.0)
    once.learn(30, 200, is_rejected=False)
    often.learn(30, 2, is_rejected=False)
    first = curves(1)[:, 0]
    assert first[once.curve(8)] > first[often.curve(8)]
