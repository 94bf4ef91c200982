"""A disk process is restarted after twice the wait of its last failure, and finally given up."""

from __future__ import annotations

from pathlib import Path

from storage.disk.process import Restarts
from tests.storage.scene import disk_config


def restarts() -> Restarts:
    return Restarts(disk_config(Path(), restart_after_s=1.0, max_failures=3, failure_window_s=60.0))


def test_waits_twice_as_long_after_each_failure_and_gives_up() -> None:
    breaker = restarts()
    assert not breaker.is_due(0.0)
    assert breaker.after_end(10.0, disk_full=False)
    assert (breaker.is_due(10.9), breaker.is_due(11.0)) == (False, True)
    assert breaker.after_end(20.0, disk_full=False)
    assert (breaker.is_due(21.9), breaker.is_due(22.0)) == (False, True)
    assert not breaker.after_end(30.0, disk_full=False)
    assert not breaker.is_due(1e9)


def test_old_failures_do_not_count() -> None:
    breaker = restarts()
    assert all(breaker.after_end(now, disk_full=False) for now in (0.0, 40.0, 80.0, 120.0, 181.0))
    assert breaker.is_due(182.0)


def test_a_full_disk_is_no_failure_and_is_tried_again_for_ever() -> None:
    breaker = Restarts(disk_config(Path(), max_failures=2, full_retry_s=10.0))
    for now in range(0, 100, 20):
        assert breaker.after_end(now, disk_full=True)
        assert (breaker.is_due(now + 9.9), breaker.is_due(now + 10.0)) == (False, True)
    assert breaker.after_end(100.0, disk_full=False)
    assert not breaker.after_end(101.0, disk_full=False)
