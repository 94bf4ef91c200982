"""Seats: numbers that nobody else has, all of them below the bound."""

from __future__ import annotations

from random import Random

import pytest

from engine.seats import Seats


@pytest.mark.parametrize("count", [1, 2, 8])
def test_every_number_below_the_bound_is_had_and_no_other(count: int) -> None:
    """What lies at a seat is in an array of that many places."""
    seats = Seats(count)
    assert [seats.take() for _ in range(count)] == list(range(count))
    with pytest.raises(IndexError):
        seats.take()


def test_no_seat_is_ever_given_to_two() -> None:
    seats, random = Seats(5), Random(3)
    taken: set[int] = set()
    for _ in range(500):
        if len(taken) < 5 and (not taken or random.random() < 0.5):
            seat = seats.take()
            assert seat not in taken
            assert 0 <= seat < 5
            taken.add(seat)
        else:
            seat = random.choice(sorted(taken))
            taken.remove(seat)
            seats.give_back(seat)
