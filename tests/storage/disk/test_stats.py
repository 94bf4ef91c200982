"""Failures add up over several disk processes. A full disk is logged, but is no failure."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from storage.disk.stats import DiskCounters
from storage.disk.wire import FileStats

WRITING = FileStats(records=5, bytes=50, lost=1, refused=2, disk_full=False)
FULL = FileStats(records=5, bytes=50, lost=1, refused=3, disk_full=True)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_a_full_disk_is_logged_when_it_begins_and_when_it_ends(
    log: pytest.LogCaptureFixture,
) -> None:
    counters = DiskCounters(Path("/cache"))
    for file in (WRITING, FULL, FULL, FULL, WRITING, WRITING):
        counters.take(file)
        assert counters.stats.disk_full is file.disk_full
    first, last = log.messages
    assert first.startswith("disk full: not writing")
    assert last.endswith("room again on the disk of /cache")


def test_a_file_given_up_is_no_failure(log: pytest.LogCaptureFixture) -> None:
    counters = DiskCounters(Path("/cache"))
    counters.take(FULL)
    counters.died(disk_full=True)
    stats = counters.stats
    assert (stats.failures, stats.given_up, stats.records, stats.disk_full) == (0, 1, 0, True)
    # the file could not be opened again, so there is nothing to give up
    counters.died(disk_full=True)
    assert counters.stats.given_up == 1
    counters.opened(set_aside=False, given_up=True)
    assert counters.stats.given_up == 2
    assert sum("removed its file" in line for line in log.messages) == 2


def test_a_death_is_a_failure_and_says_nothing_of_the_disk(log: pytest.LogCaptureFixture) -> None:
    counters = DiskCounters(Path("/cache"))
    counters.take(FULL)
    counters.died(disk_full=False)
    counters.take(FULL)
    stats = counters.stats
    assert (stats.failures, stats.given_up, stats.refused, stats.disk_full) == (1, 0, 6, True)
    assert len(log.messages) == 1
