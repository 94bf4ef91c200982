"""A pending copy ends once, with the last of its moves, in any order. These tests need no cache."""

from __future__ import annotations

import numpy as np
import pytest

from prefix_cache.errors import UnknownMove
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.namespace import Namespace
from prefix_cache.tiers.in_flight import CopyOutcome, InFlight
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Node, Transfer
from storage.move import Move, Plan, Tier

DOWN = (Tier.DEVICE, Tier.HOST)


class Station:
    """Nodes of three blocks each, in slots 0 to 2, 10 to 12, and so on."""

    def __init__(self) -> None:
        self.in_flight = InFlight()

    def begin(self, number: int, *, makes_room: bool = True) -> Transfer:
        slots = np.arange(10 * number, 10 * number + 3, dtype=np.int32)
        edge = Edge(slots, slots, bytes(3 * KEY_BYTES), 1)
        node = Node(Namespace(b"n" * 16), edge, "owner", 0, None, 0.0)
        return self.in_flight.begin(
            node, 0, DOWN, slots + 100, for_owner="owner", makes_room=makes_room
        )

    def ended(self, moves: list[Move], outcome: CopyOutcome = CopyOutcome.DONE) -> list[Transfer]:
        return list(self.in_flight.end(moves, outcome))

    def counts(self) -> tuple[int, int, int]:
        in_flight = self.in_flight
        return len(in_flight), in_flight.leaving[Tier.DEVICE], in_flight.arriving[Tier.HOST]


def test_a_move_says_where_from_and_where_to() -> None:
    transfer = Station().begin(1)
    assert transfer.moves == [Move(Tier.DEVICE, 10 + n, Tier.HOST, 110 + n) for n in range(3)]
    assert all(type(move) is Move for move in transfer.moves)


def test_a_transfer_ends_with_its_last_move_in_whatever_order() -> None:
    station = Station()
    one, two = station.begin(1), station.begin(2)
    mixed = [one.moves[2], two.moves[0], one.moves[0], two.moves[1]]
    assert station.ended(mixed) == []
    assert station.counts() == (2, 2, 2)
    assert station.ended([two.moves[2], one.moves[1]]) == [two, one]
    assert station.counts() == (0, 0, 0)
    assert (one.missed, two.missed) == (set(), set())


def test_a_transfer_ends_whole_beside_one_whose_moves_come_one_by_one() -> None:
    station = Station()
    early, late = station.begin(1), station.begin(2)
    assert station.ended([early.moves[1]]) == []
    fresh = station.begin(3)
    opened = {move for move, _, _ in station.in_flight.open_moves()}
    assert opened == {early.moves[0], early.moves[2], *late.moves, *fresh.moves}
    rest = [*fresh.moves, early.moves[2], *late.moves, early.moves[0]]
    assert station.ended(rest) == [fresh, late, early]
    assert station.counts() == (0, 0, 0)
    assert station.in_flight.open_moves() == []


def test_copies_that_make_no_room_are_not_counted_as_leaving() -> None:
    station = Station()
    transfer = station.begin(1, makes_room=False)
    assert station.counts() == (3, 0, 3)
    assert station.ended(transfer.moves) == [transfer]
    assert station.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("outcome", "lost"), [(CopyOutcome.FAILED, set()), (CopyOutcome.LOST, {1})]
)
def test_blocks_that_have_not_arrived_are_noted_by_position(
    outcome: CopyOutcome, lost: set[int]
) -> None:
    station = Station()
    transfer = station.begin(3)
    assert station.ended([transfer.moves[1]], outcome) == []
    assert station.ended([transfer.moves[0], transfer.moves[2]]) == [transfer]
    assert (transfer.missed, transfer.lost) == ({1}, lost)


def test_an_unknown_move_is_named_and_what_came_before_it_counts() -> None:
    station = Station()
    one, two = station.begin(1), station.begin(2)
    stranger = Move(Tier.DEVICE, 77, Tier.HOST, 7)
    ends = station.in_flight.end(
        [*one.moves, two.moves[0], stranger, two.moves[1]], CopyOutcome.DONE
    )
    assert next(ends) is one
    with pytest.raises(UnknownMove, match="source=77"):
        next(ends)
    assert station.counts() == (2, 2, 2)
    assert station.ended(two.moves[1:]) == [two]


def test_a_move_ends_once() -> None:
    station = Station()
    transfer = station.begin(1)
    station.ended(transfer.moves)
    with pytest.raises(UnknownMove):
        station.ended(transfer.moves[:1])


def test_a_plan_has_what_was_asked_for_since_the_one_before() -> None:
    station = Station()
    assert station.in_flight.take_plan() == Plan()
    transfer = station.begin(1)
    assert station.in_flight.take_plan().moves == tuple(transfer.moves)
    assert station.in_flight.take_plan() == Plan()
    station.in_flight.erase([4, 4, 5])
    assert station.in_flight.take_plan().erase == (4, 5)
