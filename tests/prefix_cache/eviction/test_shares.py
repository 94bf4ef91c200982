"""The working area beside the parts of a partitioned tier."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_cache.eviction.shares import Quota, partition, working_area


@given(
    st.integers(0, 4096),
    st.integers(1, 8192),
    st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12),
    st.floats(0.01, 1.0),
)
def test_each_owner_can_hold_the_longest_request_where_it_fits_half_of_the_tier(
    room: int, longest: int, weights: list[float], ceiling: float
) -> None:
    parts = partition({str(at): Quota(0, ceiling, one) for at, one in enumerate(weights)})
    area = working_area(room, longest, parts)
    assert 0 <= area <= min(longest, room // 2)
    if longest <= room // 2:
        for part in parts.values():
            assert part * (room - area) + area >= longest - 1e-6


@pytest.mark.parametrize(
    ("parts", "area"),
    [
        ([0.5, 0.5], 100),  # each part alone is long enough: the sixteenth
        ([0.25] * 4, 134),  # (500 - 400) / 0.75, rounded up
        ([0.1] * 10, 378),  # (500 - 160) / 0.9
        ([0.0, 1.0], 500),
        ([1.0], 100),
        ([], 500),
    ],
)
def test_the_smallest_part_decides(parts: list[float], area: int) -> None:
    assert working_area(1600, 500, dict(enumerate_names(parts))) == area


def enumerate_names(parts: list[float]) -> list[tuple[str, float]]:
    return [(str(at), part) for at, part in enumerate(parts)]
