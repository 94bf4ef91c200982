"""The interfaces to tiers below the device, and a stand-in for an engine without such tiers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prefix_cache.tiers.tier_pools import Tiers
from storage.disk.stats import DiskProcessStats, DiskState
from storage.move import BlockRecord, Completed, Plan


class BlockMover(Protocol):
    """An interface that moves blocks between tiers while steps are computed."""

    @property
    def pending(self) -> int:
        """Count the started moves that `poll` has not returned yet."""
        ...

    def start(self, plan: Plan) -> None:
        """Start a plan's moves, after all work launched so far on the device, without waiting."""
        ...

    def poll(self) -> Completed:
        """Return the moves that have ended since the last call, without waiting."""
        ...

    def close(self) -> None:
        """End all copies."""
        ...


class Disk(Protocol):
    """An interface to the disk tier, except for moves."""

    @property
    def generation(self) -> int:
        """A number that grows by one whenever all records are lost."""
        ...

    @property
    def state(self) -> DiskState:
        """The state of the disk, for example up, starting, or permanently off."""
        ...

    @property
    def stats(self) -> DiskProcessStats:
        """The disk's state and counters."""
        ...

    def scan(self) -> Iterable[tuple[int, BlockRecord]]:
        """List every slot that has a record, with the record. Call at the start."""
        ...

    def erase_unlisted(self) -> None:
        """Erase the records that `scan` has kept but not listed, if any."""
        ...

    @property
    def encrypts(self) -> bool:
        """True if the records of each owner are encrypted with a key of the owner."""
        ...

    def forget_owner(self, owner: str) -> None:
        """Make all records of `owner` unreadable."""
        ...

    def is_forgetting(self, owner: str) -> bool:
        """Return whether records of a forgotten owner may still be readable."""
        ...

    def note_flushes(self, flushes: Sequence[str]) -> None:
        """Record flushes as done, after all earlier erasures have ended."""
        ...

    def done_flushes(self) -> Sequence[str]:
        """List the flushes that are recorded on disk as done. Call at the start."""
        ...


class NoTiers:
    """A stand-in for the block mover of an engine with only the device tier."""

    pending = 0

    def start(self, plan: Plan) -> None:
        """Reject every plan: without lower tiers, there is nothing to move."""
        raise ValueError(f"no tier for {plan}")

    def poll(self) -> Completed:
        """Return an empty result, because no move ever ends."""
        return Completed()

    def close(self) -> None:
        """Do nothing, because there is nothing to close."""


@dataclass(frozen=True, slots=True)
class LowerTiers:
    """The tiers below the device and their block mover. By default there are no such tiers."""

    tiers: Tiers = field(default_factory=Tiers)
    mover: BlockMover = field(default_factory=NoTiers)
    disk: Disk | None = None
    block_bytes: int = 1
