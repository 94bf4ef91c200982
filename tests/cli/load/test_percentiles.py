import pytest

from cli.load.percentiles import percentile, summarise


def test_nothing_has_no_summary() -> None:
    assert summarise([]) is None


def test_known_values() -> None:
    summary = summarise([float(value) for value in range(101)])
    assert summary is not None
    assert (summary.count, summary.mean, summary.max) == (101, 50.0, 100.0)
    assert (summary.p50, summary.p90, summary.p95, summary.p99) == (50.0, 90.0, 95.0, 99.0)


def test_one_value_is_all_of_them() -> None:
    summary = summarise([0.25])
    assert summary is not None
    assert {summary.mean, summary.p50, summary.p90, summary.p95, summary.p99, summary.max} == {0.25}


def test_between_two_values_lies_a_line() -> None:
    assert percentile([0.0, 10.0], 50) == 5.0
    assert percentile([0.0, 10.0], 95) == pytest.approx(9.5)
