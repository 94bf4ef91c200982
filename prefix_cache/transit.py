"""Which copies are under way, and the plan of those that the engine is to begin next.

    begin -> (take_plan) -> end, once for each move -> the flight has ended, and is settled whole

Knows: moves and the blocks they are of. Does not know: why they were asked for, or what follows
when they end (`ascent`, `descent`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import repeat

from prefix_cache.allocator import BlockIds
from prefix_cache.errors import UnknownMove
from prefix_cache.hashing import ROOT_KEY
from prefix_cache.node import Flight, Node
from storage.move import DISK_TIER, Move, Plan, Record, Tier

NOTHING = Plan()


class Outcome(Enum):
    """What has become of a move."""

    DONE = "done"
    FAILED = "failed"  # the block stays where it was
    LOST = "lost"  # the copy that was to be read is no good


class Transit:
    """The copies under way, and the plan that has not been fetched yet."""

    def __init__(self) -> None:
        # Flights by their first move, as long as none of their moves has ended: moves of a flight
        # usually end together. When some have not, all moves are put into `_apart`, one by one.
        self._whole: dict[Move, Flight] = {}
        self._apart: dict[Move, Flight] = {}
        self._flights: dict[Flight, None] = {}
        self._moves: list[Move] = []
        self._records: dict[Move, Record] = {}
        self._erase: list[int] = []
        # By tier, read only: copies under way that will make room in it, and copies into it.
        self.leaving = dict.fromkeys(Tier, 0)
        self.arriving = dict.fromkeys(Tier, 0)

    def __len__(self) -> int:
        return sum(self.arriving.values())

    def flights(self) -> list[Flight]:
        """Return the flights that have not been settled, for checks."""
        return list(self._flights)

    def open_moves(self) -> list[tuple[Move, Flight, int]]:
        """Return the copies under way, with their blocks' positions, for checks."""
        whole = [(move, flight) for flight in self._whole.values() for move in flight.moves]
        moves = [*whole, *self._apart.items()]
        return [(move, flight, _position(flight, move)) for move, flight in moves]

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
        (source, target), count, first = ends, len(slots), node.start + start
        froms = node.edge.begin(start, ends, slots)
        moves = list(map(Move, repeat(source), froms, repeat(target), slots.tolist()))
        flight = Flight(
            source, target, first, first + count, [node], for_owner, makes_room, moves, count
        )
        node.flights.append(flight)
        self._flights[flight] = None
        self._whole[moves[0]] = flight
        self._moves += moves
        if DISK_TIER in ends:
            self._records.update((move, _record(node, at)) for at, move in enumerate(moves, start))
        self.arriving[target] += count
        if makes_room:
            self.leaving[source] += count
        return flight

    def flights_of(self, moves: Sequence[Move]) -> Iterator[Flight]:
        """The flights that consist of these moves; none of whose moves some are missing here."""
        at = 0
        while at < len(moves):
            flight = self._whole.get(moves[at])
            if flight is None or list(moves[at : at + len(flight.moves)]) != flight.moves:
                at += 1
                continue
            yield flight
            at += len(flight.moves)

    def end(self, moves: Iterable[Move], outcome: Outcome) -> Iterator[Flight]:
        """Note that these copies have ended; yield each flight as soon as its last one has.

        Raises UnknownMove at the first that is not under way.
        """
        ended, at, is_done = list(moves), 0, outcome is Outcome.DONE
        while at < len(ended):
            flight, count = self._ending(ended, at)
            if not is_done:
                _miss(flight, ended[at : at + count], outcome)
            at += count
            flight.open -= count
            self.arriving[flight.target] -= count
            if flight.makes_room:
                self.leaving[flight.source] -= count
            if not flight.open:
                yield flight

    def _ending(self, ended: list[Move], at: int) -> tuple[Flight, int]:
        """The flight of the move at `at`, and how many of its moves follow there in one go."""
        move = ended[at]
        flight = self._whole.get(move)
        if flight is not None and ended[at : at + len(flight.moves)] == flight.moves:
            return self._whole.pop(move), len(flight.moves)
        if move not in self._apart:
            self._tell_apart()
        if move not in self._apart:
            raise UnknownMove(f"{move} is not under way")
        return self._apart.pop(move), 1

    def _tell_apart(self) -> None:
        for flight in self._whole.values():
            self._apart.update(dict.fromkeys(flight.moves, flight))
        self._whole = {}

    def close(self, flight: Flight) -> None:
        """Forget a flight: it has been settled."""
        del self._flights[flight]

    def void(self, tier: Tier) -> None:
        """Count all copies on their way to `tier` as failed, whatever is reported of them."""
        for flight in self._flights:
            if flight.target is tier:
                flight.missed.update(range(flight.start, flight.end))

    def erase(self, slots: BlockIds) -> None:
        """Have these slots on disk erased by the next plan."""
        self._erase += slots.tolist()

    def take_plan(self) -> Plan:
        """What has been asked for since the last time."""
        if not self._moves and not self._erase:
            return NOTHING
        plan = Plan(tuple(self._moves), self._records, tuple(dict.fromkeys(self._erase)))
        self._moves, self._records, self._erase = [], {}, []
        return plan


def _miss(flight: Flight, moves: list[Move], outcome: Outcome) -> None:
    """Note that the blocks of these moves have not arrived and, if LOST, that they are no good."""
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
