"""A refused request is told to retry after the recent time between starts, within bounds."""

from __future__ import annotations

import pytest

from engine.scheduling.fairness.flow_queue import MAX_RETRY_S, MIN_RETRY_S, AdmissionRate


def test_nothing_measured_is_the_least() -> None:
    assert AdmissionRate().retry_after_s(5.0) == MIN_RETRY_S


@pytest.mark.parametrize(("every_s", "told"), [(0.1, MIN_RETRY_S), (2.0, 2.0), (4.0, 4.0)])
def test_the_retry_time_is_the_recent_time_between_starts(every_s: float, told: float) -> None:
    admission_rate = AdmissionRate()
    now = 0.0
    for _ in range(100):
        admission_rate.came(now)
        admission_rate.started()
        now += every_s
    assert admission_rate.retry_after_s(now) == pytest.approx(told, rel=0.5)


def test_without_starts_the_retry_time_grows_up_to_its_bound() -> None:
    admission_rate = AdmissionRate()
    admission_rate.came(0.0)
    assert admission_rate.retry_after_s(20.0) == 20.0
    assert admission_rate.retry_after_s(1e6) == MAX_RETRY_S
