"""The state and the counters of the disk tier.

Knows: names and counts. Does not know: what is counted when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from storage.disk.wire import FileStats


class DiskState(Enum):
    """Whether there is a disk to move blocks to and from."""

    STARTING = "starting"  # a process opens its file
    UP = "up"
    DOWN = "down"  # its process has ended; another will be started
    OFF = "off"  # it ended too often, or was closed


@dataclass(frozen=True, slots=True)
class DiskStats:
    """What the disk tier holds, and its failures since the start."""

    bytes: int = 0  # of the file in use
    records: int = 0
    lost: int = 0  # records that were not what was asked for
    refused: int = 0  # writes that found no room
    late: int = 0  # reads that missed their deadline
    quarantines: int = 0  # files set aside
    failures: int = 0  # deaths of the process
    forgetting: int = 0  # owners whose records are to become unreadable, but may not be yet


class DiskCounters:
    """Adds up what one process after the other has counted. One owner thread."""

    def __init__(self) -> None:
        self.stats = DiskStats()
        self._lost = 0  # counted by the processes before this one
        self._refused = 0

    def take(self, file: FileStats) -> None:
        """Take over what the running process has counted since its start."""
        self.stats = replace(
            self.stats,
            bytes=file.bytes,
            records=file.records,
            lost=self._lost + file.lost,
            refused=self._refused + file.refused,
        )

    def opened(self, *, set_aside: bool) -> None:
        """Count the file that was set aside, if one was."""
        self.stats = replace(self.stats, quarantines=self.stats.quarantines + set_aside)

    def was_late(self) -> None:
        """Count a read that missed its deadline."""
        self.stats = replace(self.stats, late=self.stats.late + 1)

    def died(self) -> None:
        """Count the end of the process, with which its records are lost."""
        self._lost, self._refused = self.stats.lost, self.stats.refused
        failures = self.stats.failures + 1
        self.stats = replace(self.stats, bytes=0, records=0, failures=failures)
