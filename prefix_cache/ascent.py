"""How blocks come back: loads of the part of a prefix that lies lower than the device.

A load is a run of blocks behind a part that is on the device or on its way there. Its copies
arrive in any order; when the last has, and the load before it has closed, the leading blocks that
arrived are on the device and the slots of the others are free again. So the device never has a
block without all those before it.

A lease waits for every load on its way. Where a block it counts on does not arrive, the lease
has failed: it is to be released, and its sequence starts over with what is there.

Knows: loads and who waits for them. Does not know: how many blocks are worth loading
(`recompute`), or where the room comes from (`descent`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from prefix_cache.holds import Holds
from prefix_cache.lease import Lease
from prefix_cache.residency import BIT, DEVICE, HOST, MOVING, WAY, Event, States
from prefix_cache.supply import Supply
from prefix_cache.transit import Transit
from prefix_cache.tree import Flight, Node, Position
from storage.move import Tier

COMING = WAY * DEVICE
Flags = npt.NDArray[np.bool_]


class Outcome(Enum):
    """What has become of a move."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"  # and what was to be read is no good


@dataclass(slots=True, eq=False)
class Load:
    """A run of blocks on its way to the device, in order of position."""

    flights: list[Flight] = field(default_factory=list)
    open: set[Flight] = field(default_factory=set)  # not settled yet
    missed: dict[Flight, Outcome] = field(default_factory=dict)  # settled, and not arrived
    leases: list[Lease] = field(default_factory=list)
    after: Load | None = None  # the load whose blocks come right before, until it has closed
    followers: list[Load] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A prefix in the tree, in blocks from position 0 and in this order."""

    device: int  # on the device
    coming: int  # on its way there
    host: int  # no higher than in the host
    disk: int  # on disk alone

    @property
    def total(self) -> int:
        """Blocks in the tree."""
        return self.device + self.coming + self.host + self.disk


def whereabouts(at: Position) -> Whereabouts:
    """Where the blocks up to `at` lie."""
    if at.inside <= at.node.edge.num_device:
        return Whereabouts(at.num_blocks, 0, 0, 0)
    counts = [0, 0, 0, 0]
    for states in _states_to(at):
        device, coming = states & DEVICE != 0, states & COMING != 0
        host = (states & HOST != 0) & ~device & ~coming
        found = [int(np.count_nonzero(part)) for part in (device, coming, host)]
        counts = [a + b for a, b in zip(counts, [*found, len(states) - sum(found)], strict=True)]
    return Whereabouts(*counts)


def reachable(at: Position, load_blocks: int | None) -> int:
    """How many blocks up to `at` a lease may count on, loading at most so many (None: any)."""
    if at.inside <= at.node.edge.num_device:
        return at.num_blocks
    states = np.concatenate(list(_states_to(at)))
    there = states & (DEVICE | COMING) != 0
    loadable = ~there & (states & MOVING == 0)
    if load_blocks is not None:
        loadable &= np.cumsum(loadable) <= load_blocks
    wrong = np.flatnonzero(~(there | loadable))
    return int(wrong[0]) if len(wrong) else len(states)


def blocks_before_coming(at: Position) -> int:
    """How many blocks up to `at` come before the first that is on its way to the device."""
    if at.inside <= at.node.edge.num_device:
        return at.num_blocks
    states = np.concatenate(list(_states_to(at)))
    coming = np.flatnonzero(states & COMING)
    return int(coming[0]) if len(coming) else at.num_blocks


def to_load(at: Position) -> int:
    """How many blocks up to `at` are neither on the device nor coming."""
    if at.inside <= at.node.edge.num_device:
        return 0
    return sum(int(np.count_nonzero(s & (DEVICE | COMING) == 0)) for s in _states_to(at))


class Ascent:
    """The loads under way. One owner thread."""

    def __init__(self, holds: Holds, supply: Supply, transit: Transit) -> None:
        self._holds = holds
        self._supply = supply
        self._descent = supply.descent
        self._transit = transit
        self._load_of: dict[Flight, Load] = {}

    def begin(self, lease: Lease) -> None:
        """Load what is missing on the way to the lease's node; the room for it is free."""
        load, before = Load(), dict[Load, None]()
        for node, below in _lower_parts(lease.node):
            before.update((self._load_of[f], None) for f in node.flights if f in self._load_of)
            places = np.flatnonzero(below)
            if len(places):
                load.flights += self._fetch(node, int(places[0]), lease.owner)
        for other in before:
            other.leases.append(lease)
        if load.flights:
            load.open = set(load.flights)
            load.leases.append(lease)
            load.after = next(reversed(before), None)
            if load.after is not None:
                load.after.followers.append(load)
            self._load_of.update(dict.fromkeys(load.flights, load))
        lease.loads += len(before) + bool(load.flights)

    def settle(self, flight: Flight, outcome: Outcome) -> list[Flight]:
        """A copy to the device has ended.

        Returns those that were lost of the loads that closed by it; their blocks are where they
        were.
        """
        load = self._load_of[flight]
        load.open.discard(flight)
        if outcome is not Outcome.DONE:
            load.missed[flight] = outcome
        return self._close(load)

    def _fetch(self, node: Node, start: int, owner: str) -> list[Flight]:
        """Begin to copy the blocks from place `start` on, each from its fastest tier."""
        flights: list[Flight] = []
        in_host = node.edge.states & HOST != 0
        for run in np.split(np.arange(start, len(in_host)), _changes(in_host[start:])):
            source = Tier.HOST if in_host[run[0]] else Tier.DISK
            slots = self._supply.take(len(run), node.owner)
            flights += self._transit.begin(node, int(run[0]), source, Tier.DEVICE, slots, owner)
        self._holds.changed(node)
        return flights

    def _close(self, load: Load) -> list[Flight]:
        """Settle a load all of whose copies have ended, and those that waited for it."""
        if load.open or load.after is not None:
            return []
        landed = 0
        while landed < len(load.flights) and self._lands(load, load.flights[landed]):
            landed += 1
        for flight in load.flights[landed:]:
            self._give_up(flight)
        for lease in load.leases:
            lease.loads -= 1
            lease.failed |= any(f.block < lease.num_shared for f in load.flights[landed:])
        lost = [flight for flight, outcome in load.missed.items() if outcome is Outcome.LOST]
        for follower in load.followers:
            follower.after = None
            lost += self._close(follower)
        return lost

    def _lands(self, load: Load, flight: Flight) -> bool:
        """Put a block on the device if it has arrived and those before it are there."""
        node, at = flight.node, flight.index
        above = node.parent
        ready = node.edge.num_device == at and (at > 0 or above is None or above.edge.is_on_device)
        if not ready or flight in load.missed:
            return False
        self._leave(flight, Event.LAND)
        self._descent.traffic.loaded[flight.move.source_tier] += 1
        if node.attached and not node.is_held:
            self._holds.evictable_blocks += 1
        for tier, shelf in self._descent.shelves.items():
            if node.edge.states[at] & BIT[tier]:
                shelf.note_doubles(node)
        self._after(node)
        return True

    def _give_up(self, flight: Flight) -> None:
        self._leave(flight, Event.FAIL)
        slot = np.array([flight.move.target], dtype=np.int32)
        self._supply.give_back(slot, flight.node.owner)
        self._after(flight.node)

    def _leave(self, flight: Flight, event: Event) -> None:
        del self._load_of[flight]
        flight.node.flights.remove(flight)
        flight.node.edge.change(flight.index, flight.index + 1, event, Tier.DEVICE)

    def _after(self, node: Node) -> None:
        self._holds.changed(node)
        if not node.attached and not node.is_held and not node.flights:
            self._descent.free(node)


def _states_to(at: Position) -> Iterable[States]:
    """The states of the blocks up to `at`, in order."""
    parts = [at.node.edge.states[: at.inside]]
    node = at.node.parent
    while node is not None:
        parts.append(node.edge.states)
        node = node.parent
    return reversed(parts)


def _lower_parts(node: Node) -> list[tuple[Node, Flags]]:
    """The nodes on the way to `node` that are not all on the device, and which of their blocks
    are not even coming; those nearest to the root first.
    """
    parts = []
    current: Node | None = node
    while current is not None and not current.edge.is_on_device:
        parts.append((current, current.edge.states & (DEVICE | COMING) == 0))
        current = current.parent
    return parts[::-1]


def _changes(flags: Flags) -> npt.NDArray[np.intp]:
    """The places where a flag differs from the one before."""
    return np.flatnonzero(flags[1:] != flags[:-1]) + 1
