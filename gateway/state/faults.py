"""The faults of the gateway's stored state, for `/readyz`, the metrics and the log.

    state_damaged    the state cannot be read, or is not whole
    state_missing    there was a state, and now it is empty, gone, or another state
    limits_damaged   the file of limits cannot be read, or is not whole
    limits_missing   there was a file of limits, and now it is empty, gone, or another file
    state_evicts     Redis may drop records when its memory is full; until then requests are served
    disk_full        the file system has no room; the gateway uses the room that it had reserved

Elsewhere: how a fault is found (`sqlite.database`, `reserved_room`, `redis.identity`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from gateway.processes.periodic import repeated

CHECK_S = 1.0

Status = Literal[
    "state_damaged",
    "state_missing",
    "limits_damaged",
    "limits_missing",
    "state_evicts",
    "disk_full",
]
STATUSES: tuple[Status, ...] = get_args(Status)  # the worst status first
Kept = Literal["state", "limits"]

_ACCEPT = "or start once with --new-state to go on without it"
_LOSS = {"state": "every tenant and key is gone then", "limits": "budgets begin again then"}
_DAMAGED: dict[Kept, Status] = {"state": "state_damaged", "limits": "limits_damaged"}
_MISSING: dict[Kept, Status] = {"state": "state_missing", "limits": "limits_missing"}

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of stored state. `reason` states fault and remedy, without a directory's name."""

    status: Status
    reason: str


class Faulty(Protocol):
    """An object that can have a fault."""

    @property
    def fault(self) -> Fault | None:
        """The fault that the latest check found, or None."""
        ...

    async def check(self) -> None:
        """Check whether the object has a fault now. Never raise an error."""
        ...


def damaged(what: Kept, name: str) -> Fault:
    """Make the fault of a file whose content changed after it was written."""
    return Fault(
        _DAMAGED[what],
        f"{name} is damaged: stop the server and put back a backup of it, {_ACCEPT}"
        f" ({_LOSS[what]}; the damaged file is kept)",
    )


def gone(what: Kept, name: str) -> Fault:
    """Make the fault of a file that had content once, and is empty or gone now."""
    return Fault(
        _MISSING[what],
        f"{name} is empty or gone, but there was one: put it back from a backup,"
        f" {_ACCEPT} ({_LOSS[what]})",
    )


def another(what: Kept, name: str, marker: str) -> Fault:
    """Make the fault of a file that was created anew or belongs to another installation."""
    return Fault(
        _MISSING[what],
        f"{name} is not the one that was here before ({marker} remembers it): put that back,"
        " or start once with --new-state to go on with this one",
    )


def exchanged(what: Kept, name: str) -> Fault:
    """Make the fault of an open file whose path leads to another file."""
    return Fault(
        _MISSING[what], f"{name} was exchanged while the server runs: restart it to use this one"
    )


def evicts(policy: str) -> Fault:
    """Make the fault of a Redis that may drop records, by its `maxmemory-policy`."""
    return Fault(
        "state_evicts",
        f"Redis drops keys, limits and usage when its memory is full (maxmemory-policy {policy}):"
        " set it to noeviction",
    )


def no_room(where: str) -> Fault:
    """Make the fault of a full disk or store at `where`."""
    return Fault(
        "disk_full",
        f"{where} is full: make room. Until then requests are served and keys can be revoked"
        " as long as the reserved room lasts",
    )


class FaultWatch:
    """A process's watch for faults. Each check calls `tell` with the statuses of all faults."""

    def __init__(self, watched: Sequence[Faulty], tell: Callable[[set[str]], None]) -> None:
        self._watched = watched
        self._tell = tell
        self._known: set[Fault] = set()

    def worst(self) -> Fault | None:
        """Return the worst known fault."""
        return min(self.faults(), key=lambda fault: STATUSES.index(fault.status), default=None)

    async def look(self) -> None:
        """Check every watched object once."""
        for one in self._watched:
            await one.check()
        found = self.faults()
        for fault in found - self._known:
            _LOG.error("%s: %s", fault.status, fault.reason)
        for fault in self._known - found:
            _LOG.warning("%s: no more", fault.status)
        self._known = found
        self._tell({fault.status for fault in found})

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[FaultWatch]:
        """Check every CHECK_S seconds while this context is open."""
        async with repeated(self._look_and_wait, "fault-watch"):
            yield self

    def faults(self) -> set[Fault]:
        """Return all known faults."""
        return {one.fault for one in self._watched if one.fault is not None}

    async def _look_and_wait(self) -> None:
        await self.look()
        await asyncio.sleep(CHECK_S)
