"""A graph bucket is filled up only with tokens that need no larger bucket."""

from __future__ import annotations

import pytest

from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.buckets import buckets_for
from engine.step_sizes import MOST_NEW, TOTALS, filled, new_tokens, places_for

BATCH_SLOTS = 256
BUCKETS = sorted(buckets_for(BATCH_SLOTS, MOST_NEW), key=lambda bucket: bucket.num_tokens)


def room_of(decodes: int, new: int) -> GraphBucket | None:
    """Return the smallest bucket for one prompt beside decodes, as a step chooses it."""
    needed = GraphBucket(decodes, new, 1)
    return next((bucket for bucket in BUCKETS if bucket.num_new and bucket.holds(needed)), None)


@pytest.mark.parametrize("decodes", [0, 1, 8, 9, 57, 64, 65, 128, 200, 256])
def test_filled_up_it_has_the_room_it_had_before(decodes: int) -> None:
    for new in range(1, 1024 - places_for(decodes) + 1, 7):
        before = room_of(decodes, new)
        most = filled(decodes, new)
        assert most >= new
        assert before is not None
        assert room_of(decodes, most) == before
        assert room_of(decodes, most + 1) != before


def test_rooms_have_the_new_tokens_that_are_listed() -> None:
    for places in (0, 8, 64, 256):
        recorded = {
            bucket.num_new for bucket in BUCKETS if bucket.num_new and bucket.num_decodes == places
        }
        assert sorted(recorded) == [new for new in new_tokens(places) if new <= MOST_NEW]


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
