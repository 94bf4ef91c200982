"""How well two classes of times can be told apart.

Knows: numbers. Does not know: what was timed, nor which number is good enough (`verdict`).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]

_RESAMPLES = 2000


class Separation(msgspec.Struct, frozen=True, kw_only=True):
    """How well hits and misses are separated. `auc` is the chance that a hit is faster than a miss.

    `low` and `high` are its 95 % interval; 0.5 means that the classes are alike. `best_advantage`
    is the largest true positive rate minus false positive rate of any threshold, which by chance
    is above 0 even for classes that are alike.
    """

    samples: int  # of each class
    auc: float
    low: float
    high: float
    best_advantage: float
    auc_of_tens: float | None  # when each guess averages ten victims
    hit_median_s: float
    miss_median_s: float


def separation(hits: Times, misses: Times, seed: int) -> Separation:
    """The separation of times in seconds; `hits[i]` and `misses[i]` had the same load."""
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
    """Mann-Whitney's U over n x m: P(hit < miss) + P(hit == miss) / 2."""
    ordered = np.sort(misses)
    slower = len(misses) - np.searchsorted(ordered, hits, side="right")
    alike = len(misses) - slower - np.searchsorted(ordered, hits, side="left")
    return float((slower + alike / 2).sum() / (len(hits) * len(misses)))


def bootstrap_interval(
    hits: Times, misses: Times, seed: int, resamples: int = _RESAMPLES
) -> tuple[float, float]:
    """The AUC's 95 % interval, by resampling pairs, so that load common to a pair cancels."""
    random = np.random.default_rng(seed)
    drawn = [
        auc(hits[chosen], misses[chosen])
        for chosen in (random.integers(len(hits), size=len(hits)) for _ in range(resamples))
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def best_advantage(hits: Times, misses: Times) -> float:
    """The most that guessing "hit" below some threshold gains: TPR less FPR."""
    thresholds = np.concatenate((hits, misses))
    true_positive = np.searchsorted(np.sort(hits), thresholds, side="right") / len(hits)
    false_positive = np.searchsorted(np.sort(misses), thresholds, side="right") / len(misses)
    return max(0.0, float((true_positive - false_positive).max()))


def _means(times: Times, groups: int) -> Times:
    means: Times = times[: groups * (len(times) // groups)].reshape(groups, -1).mean(axis=1)
    return means
