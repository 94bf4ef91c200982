"""Estimates of an AUC, compared with distributions of known AUC and with brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cli.isolation.timing.separation import auc, best_advantage, bootstrap_interval, separation

RANDOM = 20261121


def drawn(shift: float, count: int, seed: int = RANDOM) -> tuple[np.ndarray, np.ndarray]:
    """Draw times from two normal distributions with means `shift` standard deviations apart."""
    random = np.random.default_rng(seed)
    return random.normal(10.0, 1.0, count), random.normal(10.0 + shift, 1.0, count)


def true_auc(shift: float) -> float:
    """Return the AUC of two classes `shift` standard deviations apart: the normal CDF at shift /
    sqrt(2).
    """
    return 0.5 * (1 + math.erf(shift / 2))


def hanley_mcneil(area: float, hits: int, misses: int) -> float:
    """Return the standard error of an AUC of independent classes (Hanley and McNeil 1982)."""
    both_hits, both_misses = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (
        area * (1 - area)
        + (hits - 1) * (both_hits - area**2)
        + (misses - 1) * (both_misses - area**2)
    ) / (hits * misses)
    return float(np.sqrt(max(variance, 0.0)))


@pytest.mark.parametrize("ties", [False, True])
def test_auc_is_the_share_of_pairs(ties: bool) -> None:
    hits, misses = drawn(0.5, 60)
    if ties:
        hits, misses = hits.round(), misses.round()
    pairs = [(h < m) + (h == m) / 2 for h in hits for m in misses]
    assert auc(hits, misses) == pytest.approx(np.mean(pairs))


def test_auc_of_classes_that_do_not_overlap() -> None:
    low, high = np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])
    assert (auc(low, high), auc(high, low), auc(low, low)) == (1.0, 0.0, 0.5)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.5, 2.0])
def test_auc_of_normal_classes(shift: float) -> None:
    hits, misses = drawn(shift, 20_000)
    assert auc(hits, misses) == pytest.approx(true_auc(shift), abs=0.008)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_interval_holds_the_true_value_nineteen_times_of_twenty(shift: float) -> None:
    held = 0
    for seed in range(100):
        hits, misses = drawn(shift, 300, seed)
        low, high = bootstrap_interval(hits, misses, seed, resamples=200)
        held += low <= true_auc(shift) <= high
    assert 88 <= held <= 100


def test_the_interval_of_independent_classes_is_hanley_and_mcneils() -> None:
    hits, misses = drawn(0.2, 2000)
    low, high = bootstrap_interval(hits, misses, RANDOM)
    error = hanley_mcneil(auc(hits, misses), 2000, 2000)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_hanley_mcneil_at_two_thousand_a_class() -> None:
    assert 1.96 * hanley_mcneil(0.5, 2000, 2000) == pytest.approx(0.018, abs=0.001)


def test_load_that_both_of_a_pair_share_does_not_widen_the_interval() -> None:
    """Measure pairs under a common load.

    A drift ten times the measured difference hardly widens the paired interval.
    """
    random = np.random.default_rng(RANDOM)
    drift = random.normal(0.0, 10.0, 1000)
    hits, misses = drift + random.normal(size=1000), drift + random.normal(size=1000)
    low, high = bootstrap_interval(hits, misses, RANDOM)
    assert high - low < 2 * 1.96 * hanley_mcneil(0.5, 1000, 1000) / 3


def test_the_same_seed_gives_the_same_interval() -> None:
    hits, misses = drawn(0.1, 200)
    assert bootstrap_interval(hits, misses, 7) == bootstrap_interval(hits, misses, 7)


def test_best_advantage() -> None:
    low, high = np.array([1.0, 2.0, 3.0, 9.0]), np.array([4.0, 5.0, 6.0, 7.0])
    assert best_advantage(low, high) == 0.75
    assert best_advantage(high + 10, low) == 0.0
    assert best_advantage(*drawn(0.0, 20_000)) < 0.02


def test_averaging_ten_victims_helps_a_weak_signal_and_not_none() -> None:
    weak = separation(*drawn(0.1, 4_000), seed=RANDOM)
    assert weak.auc == pytest.approx(0.528, abs=0.008)
    assert weak.auc_of_tens == pytest.approx(0.588, abs=0.03)
    none = separation(*drawn(0.0, 4_000), seed=RANDOM)
    assert none.auc_of_tens == pytest.approx(0.5, abs=0.03)
    assert none.low <= 0.5 <= none.high
