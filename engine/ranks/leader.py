"""Rank 0's end of the message ring, and of the sockets to the other ranks.

Elsewhere: the contents of messages about steps and copies (`runner`, `tiers`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Protocol, TypeVar

from engine.process import AnotherRankIsGone
from engine.ranks.groups import RankGroups
from engine.ranks.messages import ENCODER, REPORTS, RankMessage, Report
from engine.ranks.ring import RingWriter
from storage.disk.wire import Channel, WireBroken
from storage.waiting import wait_for_any

R = TypeVar("R", bound=RankMessage)


class RankGone(AnotherRankIsGone):
    """An error: another rank has ended, or does not answer, so no step can be computed."""


class OtherRanks:
    """The ranks except rank 0, in the order of their numbers. Used by one thread only."""

    def __init__(self, ring: RingWriter, channels: Sequence[Channel]) -> None:
        self._ring = ring
        self._channels = channels
        self._reports: list[list[Report]] = [[] for _ in channels]
        self._gone: set[int] = set()

    def __len__(self) -> int:
        return len(self._channels)

    def tell(self, message: RankMessage) -> None:
        """Send a message to all other ranks, after earlier messages. Raises RankGone, RingStuck."""
        for place in range(len(self)):
            self._receive(place)
        if self._gone:
            raise RankGone(f"rank {min(self._gone) + 1} is gone")
        self._ring.write(ENCODER.encode(message))

    def take(self, kind: type[R]) -> list[tuple[int, R]]:
        """Return and remove the received reports of this kind, each with the index of its rank."""
        taken: list[tuple[int, R]] = []
        for place, reports in enumerate(self._reports):
            self._receive(place)
            taken += [(place, one) for one in reports if isinstance(one, kind)]
            reports[:] = [one for one in reports if not isinstance(one, kind)]
        return taken

    def wait_for(self, kind: type[R], place: int, timeout_s: float) -> R:
        """Return the next report of this kind from one rank. Raises RankGone after `timeout_s`."""
        give_up = time.monotonic() + timeout_s
        while True:
            self._receive(place)
            reports = self._reports[place]
            found = next((one for one in reports if isinstance(one, kind)), None)
            if found is not None:
                reports.remove(found)
                return found
            left = give_up - time.monotonic()
            if place in self._gone or left <= 0:
                raise RankGone(f"rank {place + 1} is gone, or has not answered")
            wait_for_any([self._channels[place].socket], left)

    def close(self) -> None:
        """Close the ring and the sockets. Ranks that are still running then end."""
        for channel in self._channels:
            channel.socket.close()
        self._ring.close()

    def _receive(self, place: int) -> None:
        try:
            while (content := self._channels[place].receive(socket.MSG_DONTWAIT)) is not None:
                self._reports[place].append(REPORTS.decode(content))
        except WireBroken:
            self._gone.add(place)


class Ranks(Protocol):
    """An interface of rank 0 to all ranks of the engine (`engine.ranks.team`)."""

    @property
    def groups(self) -> RankGroups:
        """The groups to which rank 0 belongs."""
        ...

    @property
    def others(self) -> OtherRanks:
        """All ranks except rank 0."""
        ...
