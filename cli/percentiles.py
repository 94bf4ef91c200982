"""Percentiles of measured times.

Knows: numbers. Does not know: what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

PERCENTS = (50, 90, 95, 99)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How values are spread; in the unit of the values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def summarise(values: Sequence[float]) -> Summary | None:
    """The spread of `values`, between two of them linearly; None when there are none."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    p50, p90, p95, p99 = (float(value) for value in np.percentile(array, PERCENTS))
    return Summary(
        count=len(values),
        mean=float(array.mean()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(array.max()),
    )
