"""The state and counters of the disk tier. This module also logs that its file system is full."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from storage.disk.wire import FileStats

_log = logging.getLogger(__name__)


class DiskState(Enum):
    """The states of the disk tier."""

    STARTING = "starting"  # a process is opening the file
    UP = "up"
    DOWN = "down"  # the process has ended, and another will be started
    OFF = "off"  # the process ended too often, or the tier was closed


@dataclass(slots=True)
class DiskProcessStats:
    """The use of the disk tier, and its failures since the start."""

    bytes: int = 0
    records: int = 0
    lost: int = 0  # number of records found damaged or wrong, or lost with their file
    refused: int = 0  # number of writes refused because the file or its disk was full
    late: int = 0  # number of reads that missed their deadline
    quarantines: int = 0
    failures: int = 0  # how often the disk's process died
    disk_full: bool = False
    given_up: int = 0  # how often the file was removed, as other programs needed its disk space
    forgetting: int = 0  # number of forgotten owners whose records may still be readable


class DiskCounters:
    """Sums of the counts of successive disk processes. Used by one thread only."""

    def __init__(self, directory: Path) -> None:
        self.stats = DiskProcessStats()
        self._directory = directory
        self._lost = 0
        self._refused = 0

    def take(self, file: FileStats) -> None:
        """Add the running process's counts since its start."""
        self._note_full(file.disk_full)
        stats = self.stats
        stats.bytes, stats.records = file.bytes, file.records
        stats.lost, stats.refused = self._lost + file.lost, self._refused + file.refused

    def opened(self, *, set_aside: bool, given_up: bool) -> None:
        """Count a file that was moved to quarantine or removed at the opening."""
        self.stats.quarantines += set_aside
        if given_up:
            self._gave_up()

    def died(self, *, disk_full: bool) -> None:
        """Count the end of the process, and count all its records as lost.

        `disk_full` means that the process ended because its file system was nearly full, which is
        no failure.
        """
        stats = self.stats
        self._note_full(disk_full or stats.disk_full)
        if disk_full and stats.records:
            self._gave_up()
        self._lost, self._refused = stats.lost, stats.refused
        stats.bytes = stats.records = 0
        stats.failures += not disk_full

    def _gave_up(self) -> None:
        _log.warning("disk tier: removed its file: others need the disk of %s", self._directory)
        self.stats.given_up += 1

    def _note_full(self, disk_full: bool) -> None:
        if disk_full and not self.stats.disk_full:
            _log.warning(
                "disk full: not writing: too little is left of that of %s", self._directory
            )
        elif self.stats.disk_full and not disk_full:
            _log.info("disk tier: there is room again on the disk of %s", self._directory)
        self.stats.disk_full = disk_full
