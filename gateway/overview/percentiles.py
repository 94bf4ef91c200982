"""Percentiles of the observations that a histogram counted between two looks.

Single observations are unknown. A percentile is computed as if the observations of its bucket were
spread evenly.
"""

from collections.abc import Sequence
from itertools import accumulate

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of a latency, in milliseconds."""

    p50: float
    p99: float


def percentiles(bounds: Sequence[float], counts: Sequence[float]) -> Percentiles | None:
    """Compute percentiles from counts by bucket, with upper `bounds` in s; None if all are 0.

    The last bound may be infinite. Observations in the last bucket then count as its lower bound.
    """
    if not sum(counts):
        return None
    return Percentiles(*(round(_at(bounds, counts, part) * 1000, 3) for part in (0.5, 0.99)))


def _at(bounds: Sequence[float], counts: Sequence[float], part: float) -> float:
    wanted = part * sum(counts)
    sums = list(accumulate(counts))
    index = next(i for i, below in enumerate(sums) if below >= wanted)
    low = bounds[index - 1] if index else 0.0
    if bounds[index] == float("inf"):
        return low
    return low + (bounds[index] - low) * (wanted - (sums[index] - counts[index])) / counts[index]
