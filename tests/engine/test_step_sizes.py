"""What a room is filled up to is what costs no larger room."""

from __future__ import annotations

import pytest

from engine.graphs.inputs import Room
from engine.graphs.steps import rooms_for
from engine.step_sizes import BESIDE, MOST_NEW, TOTALS, filled

SEATS = 256
ROOMS = sorted(rooms_for(SEATS, MOST_NEW), key=lambda room: room.num_tokens)


def room_of(decodes: int, new: int) -> Room | None:
    """The smallest room for one prompt beside decodes, as a step finds it."""
    needed = Room(decodes, new, 1)
    return next((room for room in ROOMS if room.num_new and room.holds(needed)), None)


@pytest.mark.parametrize("decodes", [0, 1, 8, 9, 57, 64, 65, 128, 200, 256])
def test_filled_up_it_has_the_room_it_had_before(decodes: int) -> None:
    """From 320 tokens on, below which rooms are not made by their totals."""
    places = min(count for count in BESIDE if count >= decodes)
    for new in range(320, 1024 - places + 1, 7):
        before = room_of(decodes, new)
        most = filled(decodes, new)
        assert most >= new
        assert before is not None
        assert room_of(decodes, most) == before
        assert room_of(decodes, most + 1) != before


def test_beside_64_decodes_320_tokens_fill_a_room_of_384() -> None:
    assert [filled(decodes, 320) for decodes in (57, 64, 65, 128)] == [320, 320, 384, 384]


@pytest.mark.parametrize("decodes", [0, 57, 64, 200, 256])
def test_no_more_than_is_recorded(decodes: int) -> None:
    for new in range(900, MOST_NEW + 1):
        assert new <= filled(decodes, new) <= MOST_NEW


@pytest.mark.parametrize("decodes", [0, 100, 256])
@pytest.mark.parametrize("new", [1_300, 8_192])
def test_what_is_larger_than_all_rooms_stays_as_it_is(decodes: int, new: int) -> None:
    assert new > max(TOTALS)
    assert filled(decodes, new) == new


def test_more_decodes_than_any_room_has_are_as_many_as_they_are() -> None:
    assert filled(300, 84) == 84
    assert filled(300, 85) == 212
