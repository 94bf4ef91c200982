from __future__ import annotations

from math import inf

from gateway.overview.percentiles import Percentiles, percentiles

BOUNDS = (0.1, 0.2, 0.4, inf)


def test_nothing_observed_has_no_percentiles() -> None:
    assert percentiles(BOUNDS, (0, 0, 0, 0)) is None


def test_a_percentile_lies_within_its_bucket_as_if_the_observations_lay_evenly() -> None:
    assert percentiles(BOUNDS, (0, 100, 0, 0)) == Percentiles(p50=150.0, p99=199.0)


def test_two_buckets_are_told_apart() -> None:
    assert percentiles(BOUNDS, (98, 0, 2, 0)) == Percentiles(p50=51.02, p99=300.0)


def test_what_lies_beyond_the_last_bound_counts_as_that_bound() -> None:
    assert percentiles(BOUNDS, (0, 0, 0, 5)) == Percentiles(p50=400.0, p99=400.0)
