"""Which copies are under way, and what the owner of the bytes is to do next.

    begin -> (take_plan) -> end, once for each move -> the flight has ended, and is settled whole

Knows: moves and the blocks they are of. Does not know: why they were asked for, or what follows
when they end (`ascent`, `descent`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import groupby, repeat

from prefix_cache.allocator import BlockIds
from prefix_cache.errors import UnknownMove
from prefix_cache.hashing import ROOT_KEY
from prefix_cache.node import Flight, Node
from prefix_cache.residency import Event
from storage.move import Move, Plan, Record, Tier

NOTHING = Plan()


class Outcome(Enum):
    """What has become of a move."""

    DONE = "done"
    FAILED = "failed"  # the block is where it was
    LOST = "lost"  # and what was to be read there is no good


class Transit:
    """The copies under way, and the plan that has not been fetched yet."""

    def __init__(self) -> None:
        self._under_way: dict[Move, Flight] = {}
        self._flights: dict[Flight, None] = {}
        self._moves: list[Move] = []
        self._records: dict[Move, Record] = {}
        self._erase: list[int] = []
        self._leaving = dict.fromkeys(Tier, 0)
        self._arriving = dict.fromkeys(Tier, 0)

    def __len__(self) -> int:
        return len(self._under_way)

    def flights(self) -> list[Flight]:
        """Return the flights that have not been settled, for checks."""
        return list(self._flights)

    def open_moves(self) -> list[tuple[Move, Flight, int]]:
        """Return the copies under way, with their blocks' positions, for checks."""
        moves = self._under_way.items()
        return [(move, flight, _position(flight, move)) for move, flight in moves]

    def leaving(self, tier: Tier) -> int:
        """How many copies are under way that will make room in a tier."""
        return self._leaving[tier]

    def arriving(self, tier: Tier) -> int:
        """How many copies into a tier are under way."""
        return self._arriving[tier]

    def begin(
        self,
        node: Node,
        start: int,
        ends: tuple[Tier, Tier],
        slots: BlockIds,
        *,
        for_owner: str,
        makes_room: bool = False,
    ) -> Flight:
        """Copy the blocks of `node` from place `start` on from one tier to `slots` of another."""
        (source, target), edge, end = ends, node.edge, start + len(slots)
        edge.change(slice(start, end), Event.BEGIN, target)
        edge.assign(start, target, slots)
        first, last = node.start + start, node.start + end
        froms, tos = edge.slots(source)[start:end].tolist(), slots.tolist()
        ways = zip(repeat(source), froms, repeat(target), tos)
        moves = list(map(tuple.__new__, repeat(Move), ways))  # `Move(...)` takes twice the time
        flight = Flight(
            source, target, first, last, [node], for_owner, makes_room, moves, len(moves)
        )
        node.flights.append(flight)
        self._flights[flight] = None
        self._under_way.update(zip(moves, repeat(flight)))
        self._moves += moves
        if Tier.DISK in ends:
            self._records.update((move, _record(node, at)) for at, move in enumerate(moves, start))
        self._arriving[target] += len(slots)
        self._leaving[source] += len(slots) if makes_room else 0
        return flight

    def end(self, moves: Iterable[Move], outcome: Outcome) -> Iterator[Flight]:
        """These copies have ended; yield each flight when its last one has, before going on.

        UnknownMove at the first that is not under way.
        """
        ended = list(moves)
        at = 0
        # Moves of one flight come together, and it is told once how many of its have ended.
        for flight, same in groupby(map(self._under_way.pop, ended, repeat(None))):
            if flight is None:
                raise UnknownMove(f"{ended[at]} is not under way")
            count = len(list(same))
            if outcome is not Outcome.DONE:
                _miss(flight, ended[at : at + count], outcome)
            at += count
            flight.open -= count
            self._arriving[flight.target] -= count
            if flight.makes_room:
                self._leaving[flight.source] -= count
            if not flight.open:
                yield flight

    def close(self, flight: Flight) -> None:
        """What has become of all copies of a flight has been applied."""
        del self._flights[flight]

    def void(self, tier: Tier) -> None:
        """What is on its way to `tier` has not arrived, whatever was or will be reported of it."""
        for flight in self._flights:
            if flight.target is tier:
                flight.missed.update(range(flight.start, flight.end))

    def erase(self, slots: BlockIds) -> None:
        """These slots on disk hold nothing any more."""
        self._erase += slots.tolist()

    def take_plan(self) -> Plan:
        """What has been asked for since the last time."""
        if not self._moves and not self._erase:
            return NOTHING
        plan = Plan(tuple(self._moves), self._records, tuple(dict.fromkeys(self._erase)))
        self._moves, self._records, self._erase = [], {}, []
        return plan


def _miss(flight: Flight, moves: list[Move], outcome: Outcome) -> None:
    """The blocks of these moves have not arrived, and are no good if they are lost."""
    positions = [_position(flight, move) for move in moves]
    flight.missed.update(positions)
    if outcome is Outcome.LOST:
        flight.lost.update(positions)


def _position(flight: Flight, move: Move) -> int:
    return flight.start + flight.moves.index(move)


def _record(node: Node, at: int) -> Record:
    before = ROOT_KEY if node.parent is None else node.parent.last_key
    return Record(
        key=node.edge.key(at),
        parent_key=node.edge.key(at - 1) if at else before,
        namespace=node.namespace,
        owner=node.owner,
        token_ids=node.edge.block(at).astype("<i4", copy=False).tobytes(),
        hits=node.hits + node.seen,
    )
