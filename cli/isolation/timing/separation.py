"""The separation of two lists of times: how well a time tells a hit from a miss."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

_RESAMPLES = 2000

Times = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.intp]


class Separation(msgspec.Struct, frozen=True, kw_only=True):
    """The separation of hits and misses.

    `auc` is the probability that a hit is faster than a miss, 0.5 if hits and misses are equally
    fast. `low` and `high` are its 95 % interval. `best_advantage` is the maximum, over all
    thresholds, of the true positive rate minus the false positive rate. By chance it is above 0
    even if hits and misses are equally fast.
    """

    samples: int
    auc: float
    low: float
    high: float
    best_advantage: float
    auc_of_tens: float | None  # AUC if each guess uses the mean of ten measured times
    hit_median_s: float
    miss_median_s: float


def separation(hits: Times, misses: Times, seed: int) -> Separation:
    """Measure the separation of times in seconds. `hits[i]` and `misses[i]` had the same load."""
    low, high = bootstrap_interval(hits, misses, seed)
    tens = len(hits) // 10
    return Separation(
        samples=len(hits),
        auc=auc(hits, misses),
        low=low,
        high=high,
        best_advantage=best_advantage(hits, misses),
        auc_of_tens=auc(_means(hits, tens), _means(misses, tens)) if tens >= 10 else None,
        hit_median_s=float(np.median(hits)),
        miss_median_s=float(np.median(misses)),
    )


def auc(hits: Times, misses: Times) -> float:
    """Compute Mann-Whitney's U over n x m: P(hit < miss) + P(hit == miss) / 2."""
    return _auc_of_ranks(*_ranks(hits, misses))


def bootstrap_interval(
    hits: Times, misses: Times, seed: int, resamples: int = _RESAMPLES
) -> tuple[float, float]:
    """Return the AUC's 95 % interval by resampling pairs, in which common load cancels."""
    random = np.random.default_rng(seed)
    of_hits, of_misses, count = _ranks(hits, misses)
    drawn = [
        _auc_of_ranks(of_hits[chosen], of_misses[chosen], count)
        for chosen in (random.integers(len(hits), size=len(hits)) for _ in range(resamples))
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def _ranks(hits: Times, misses: Times) -> tuple[Ranks, Ranks, int]:
    """Rank hits and misses together. Returns also the number of different times."""
    different, ranks = np.unique(np.concatenate((hits, misses)), return_inverse=True)
    return ranks[: len(hits)], ranks[len(hits) :], len(different)


def _auc_of_ranks(hits: Ranks, misses: Ranks, count: int) -> float:
    """Compute the AUC from ranks below `count`, without sorting, since it is resampled often."""
    num_hits, num_misses = (np.bincount(one, minlength=count) for one in (hits, misses))
    slower = len(misses) - np.cumsum(num_misses)
    return float((num_hits * (slower + num_misses / 2)).sum() / (len(hits) * len(misses)))


def best_advantage(hits: Times, misses: Times) -> float:
    """Return the maximum gain, TPR - FPR, of guessing "hit" below a threshold."""
    thresholds = np.concatenate((hits, misses))
    true_positive = np.searchsorted(np.sort(hits), thresholds, side="right") / len(hits)
    false_positive = np.searchsorted(np.sort(misses), thresholds, side="right") / len(misses)
    return max(0.0, float((true_positive - false_positive).max()))


def _means(times: Times, groups: int) -> Times:
    means: Times = times[: groups * (len(times) // groups)].reshape(groups, -1).mean(axis=1)
    return means
