"""Which copies are under way, and the plan of those that the engine is to begin next.

    begin -> (take_plan) -> end, once for each move -> the shipment has ended, and is settled whole

Knows: moves and the blocks they are of. Does not know: why they were asked for, or what follows
when they end (`ascent`, `landing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import repeat

from prefix_cache.allocator import BlockIds
from prefix_cache.errors import UnknownMove
from prefix_cache.hashing import ROOT_KEY
from prefix_cache.node import Node, Shipment
from storage.move import DEVICE_TIER, DISK_TIER, Move, Plan, Record, Tier

NOTHING = Plan()


class Outcome(Enum):
    """What has become of a move."""

    DONE = "done"
    FAILED = "failed"  # the block stays where it was
    LOST = "lost"  # the copy that was to be read is no good


class Transit:
    """The copies under way, and the plan that has not been fetched yet."""

    def __init__(self) -> None:
        # Shipments by their first move, as long as none of their moves has ended: the moves of one
        # usually end together. When some have not, all moves are put into `_apart`, one by one.
        self._whole: dict[Move, Shipment] = {}
        self._apart: dict[Move, Shipment] = {}
        self._shipments: dict[Shipment, None] = {}
        self._moves: list[Move] = []
        self._records: dict[Move, Record] = {}
        self._erase: list[int] = []
        # By tier, read only: copies under way that will make room in it, and copies into it.
        self.leaving = dict.fromkeys(Tier, 0)
        self.arriving = dict.fromkeys(Tier, 0)

    def __len__(self) -> int:
        return sum(self.arriving.values())

    @property
    def plans_loads(self) -> bool:
        """Whether the next plan has copies to the device. Goes through the whole plan."""
        return any(move.target_tier is DEVICE_TIER for move in self._moves)

    def shipments(self) -> list[Shipment]:
        """Return the shipments that have not been settled, for checks."""
        return list(self._shipments)

    def open_moves(self) -> list[tuple[Move, Shipment, int]]:
        """Return the copies under way, with their blocks' positions, for checks."""
        whole = [(move, shipment) for shipment in self._whole.values() for move in shipment.moves]
        moves = [*whole, *self._apart.items()]
        return [(move, shipment, _position(shipment, move)) for move, shipment in moves]

    def begin(
        self,
        node: Node,
        start: int,
        ends: tuple[Tier, Tier],
        slots: BlockIds,
        *,
        for_owner: str,
        makes_room: bool = False,
    ) -> Shipment:
        """Copy the blocks of `node` from place `start` on from one tier to `slots` of another."""
        (source, target), count, first = ends, len(slots), node.start + start
        froms = node.edge.begin(start, ends, slots)
        moves = list(map(Move, repeat(source), froms, repeat(target), slots.tolist()))
        shipment = Shipment(
            source, target, first, first + count, [node], for_owner, makes_room, moves, count
        )
        node.shipments.append(shipment)
        self._shipments[shipment] = None
        self._whole[moves[0]] = shipment
        self._moves += moves
        if DISK_TIER in ends:
            self._records.update((move, _record(node, at)) for at, move in enumerate(moves, start))
        self.arriving[target] += count
        if makes_room:
            self.leaving[source] += count
        return shipment

    def shipments_of(self, moves: Sequence[Move]) -> Iterator[Shipment]:
        """The shipments that these moves make up; of one that has ended in part there is none."""
        at = 0
        while at < len(moves):
            shipment = self._whole.get(moves[at])
            if shipment is None or list(moves[at : at + len(shipment.moves)]) != shipment.moves:
                at += 1
                continue
            yield shipment
            at += len(shipment.moves)

    def end(self, moves: Iterable[Move], outcome: Outcome) -> Iterator[Shipment]:
        """Note that these copies have ended; yield each shipment as soon as its last one has.

        Raises UnknownMove at the first that is not under way.
        """
        ended, at, is_done = list(moves), 0, outcome is Outcome.DONE
        while at < len(ended):
            shipment, count = self._ending(ended, at)
            if not is_done:
                _miss(shipment, ended[at : at + count], outcome)
            at += count
            shipment.open -= count
            self.arriving[shipment.target] -= count
            if shipment.makes_room:
                self.leaving[shipment.source] -= count
            if not shipment.open:
                yield shipment

    def _ending(self, ended: list[Move], at: int) -> tuple[Shipment, int]:
        """The shipment of the move at `at`, and how many of its moves follow there in one go."""
        move = ended[at]
        shipment = self._whole.get(move)
        if shipment is not None and ended[at : at + len(shipment.moves)] == shipment.moves:
            return self._whole.pop(move), len(shipment.moves)
        if move not in self._apart:
            self._tell_apart()
        if move not in self._apart:
            raise UnknownMove(f"{move} is not under way")
        return self._apart.pop(move), 1

    def _tell_apart(self) -> None:
        for shipment in self._whole.values():
            self._apart.update(dict.fromkeys(shipment.moves, shipment))
        self._whole = {}

    def close(self, shipment: Shipment) -> None:
        """Forget a shipment: it has been settled."""
        del self._shipments[shipment]

    def void(self, tier: Tier) -> None:
        """Count all copies on their way to `tier` as failed, whatever is reported of them."""
        for shipment in self._shipments:
            if shipment.target is tier:
                shipment.missed.update(range(shipment.start, shipment.end))

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


def _miss(shipment: Shipment, moves: list[Move], outcome: Outcome) -> None:
    """Note that the blocks of these moves have not arrived and, if LOST, that they are no good."""
    positions = [_position(shipment, move) for move in moves]
    shipment.missed.update(positions)
    if outcome is Outcome.LOST:
        shipment.lost.update(positions)


def _position(shipment: Shipment, move: Move) -> int:
    return shipment.start + shipment.moves.index(move)


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
