"""The engine's side of the disk tier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch

from storage.disk.config import DiskConfig
from storage.host_pool import HostPool
from storage.move import Record


class DiskState(Enum):
    """Whether there is a disk to move blocks to and from."""

    UP = "up"
    DOWN = "down"  # its process has ended; another is on its way
    OFF = "off"  # it ended too often, or was closed


@dataclass(frozen=True, slots=True)
class DiskStats:
    """What the disk tier holds and has been through since the start."""

    bytes: int = 0  # of the file in use
    records: int = 0
    lost: int = 0  # records that were not what was asked for
    quarantines: int = 0  # files set aside
    failures: int = 0  # deaths of the process
    is_up: bool = False


class DiskTier:
    """Blocks on disk, by slot. One owner thread; nothing but the start, `scan` and `close` waits."""

    def __init__(
        self, config: DiskConfig, host: HostPool | None = None, device: torch.device | None = None
    ) -> None:
        """Start the process and wait until its file is open; DiskInUse, DiskUnavailable."""
        raise NotImplementedError

    @property
    def num_blocks(self) -> int:
        """Slots."""
        raise NotImplementedError

    @property
    def state(self) -> DiskState:
        """Whether it is up, coming back, or off for good."""
        raise NotImplementedError

    @property
    def is_up(self) -> bool:
        """Whether moves to and from it can succeed."""
        raise NotImplementedError

    @property
    def generation(self) -> int:
        """Raised by one each time that all records were lost: the cache is to forget the tier."""
        raise NotImplementedError

    @property
    def stats(self) -> DiskStats:
        """As last heard; never waits."""
        raise NotImplementedError

    def scan(self) -> Iterator[tuple[int, Record]]:
        """Every slot that holds a record, with its record. Waits; at the start, before any move."""
        raise NotImplementedError

    def forget_owner(self, owner: str) -> None:
        """Make all records of `owner` unreadable, for good. Returns at once, done in order."""
        raise NotImplementedError

    def close(self) -> None:
        """Let what was written reach the disk and end the process."""
        raise NotImplementedError
