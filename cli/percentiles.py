"""Percentiles of measured times.

Knows: numbers. Does not know: what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from statistics import fmean

import msgspec


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of some values, in their unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def summarise(values: Sequence[float]) -> Summary | None:
    """The spread of `values`; None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return Summary(
        count=len(ordered),
        mean=fmean(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the ascending, non-empty `ordered` lie.

    Between two values it lies on the line that joins them, as numpy's default does.
    """
    place = (len(ordered) - 1) * percent / 100
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
