"""When a process that died is started again."""

from __future__ import annotations

from pathlib import Path

from storage.disk.restarts import Restarts
from tests.storage.scene import disk_config


def restarts() -> Restarts:
    return Restarts(disk_config(Path(), restart_after_s=1.0, max_failures=3, failure_window_s=60.0))


def test_waits_twice_as_long_after_each_failure_and_gives_up() -> None:
    breaker = restarts()
    assert not breaker.is_due(0.0)
    assert breaker.after_failure(10.0)
    assert (breaker.is_due(10.9), breaker.is_due(11.0)) == (False, True)
    assert breaker.after_failure(20.0)
    assert (breaker.is_due(21.9), breaker.is_due(22.0)) == (False, True)
    assert not breaker.after_failure(30.0)
    assert not breaker.is_due(1e9)


def test_old_failures_do_not_count() -> None:
    breaker = restarts()
    assert all(breaker.after_failure(now) for now in (0.0, 40.0, 80.0, 120.0, 181.0))
    assert breaker.is_due(182.0)
