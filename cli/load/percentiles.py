"""Percentiles of measured times."""

from collections.abc import Sequence
from statistics import fmean

import msgspec
import numpy as np


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of some values, in the values' unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def summarise(values: Sequence[float]) -> Summary | None:
    """Summarise the distribution of `values`, if there are any."""
    if not values:
        return None
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
    mean, most = fmean(values), max(values)
    return Summary(count=len(values), mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=most)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of `values` lie, interpolated linearly."""
    return float(np.percentile(values, percent))
