"""Executes plans of moves between tiers, beside the steps."""

from __future__ import annotations

from dataclasses import dataclass

from storage.device_pool import DevicePool
from storage.disk.tier import DiskTier
from storage.host_pool import HostPool
from storage.move import Move, Plan


@dataclass(frozen=True, slots=True)
class Settled:
    """Moves that have ended since the last time."""

    done: tuple[Move, ...] = ()
    failed: tuple[Move, ...] = ()  # nothing arrived; the source is as good as before
    lost: tuple[Move, ...] = ()  # read from disk, and not what was asked for: the source is gone


class TierMover:
    """Moves blocks between tiers. One owner thread; `start` and `poll` never wait."""

    def __init__(
        self, device: DevicePool, host: HostPool | None = None, disk: DiskTier | None = None
    ) -> None:
        raise NotImplementedError

    @property
    def pending(self) -> int:
        """Moves that have been started and not been reported."""
        raise NotImplementedError

    def start(self, plan: Plan) -> None:
        """Begin all moves of `plan`; UnsupportedMove, UnknownSlot, and then none is begun."""
        raise NotImplementedError

    def poll(self) -> Settled:
        """Return the moves that have ended since the last call."""
        raise NotImplementedError

    def close(self) -> None:
        """Wait for the copies under way and drop the rest. The pools and the disk stay open."""
        raise NotImplementedError
