"""Restarts follow each other quickly at first, and then more slowly."""

from __future__ import annotations

import pytest

from gateway.processes.backoff import Backoff


@pytest.mark.parametrize(
    ("short_runs", "delay"),
    [(0, 0.1), (1, 0.1), (2, 1.0), (3, 2.0), (4, 4.0), (5, 8.0), (6, 10.0), (9999, 10.0)],
)
def test_restarts_slow_down(short_runs: int, delay: float) -> None:
    assert Backoff().delay(short_runs) == delay
