"""The working area beside a tier's partitions is large enough for each longest request."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prefix_cache.eviction.shares import Quota, partition, working_area

OWNERS = st.lists(st.tuples(st.floats(0.01, 100.0), st.integers(1, 8192)), min_size=1, max_size=12)


@given(st.integers(0, 4096), OWNERS, st.floats(0.01, 1.0))
@example(room=2, owners=[(1.0, 3)], ceiling=1.0)
def test_each_owner_can_run_its_longest_request_where_half_of_the_tier_is_enough(
    room: int, owners: list[tuple[float, int]], ceiling: float
) -> None:
    quotas = {str(at): Quota(0, ceiling, weight) for at, (weight, _) in enumerate(owners)}
    longest = {str(at): blocks for at, (_, blocks) in enumerate(owners)}
    parts = partition(quotas)
    area = working_area(room, longest, parts)
    assert 0 <= area <= min(max(longest.values()), room // 2)
    for owner, part in parts.items():
        if longest[owner] <= room // 2 or (area < room // 2 and longest[owner] <= room):
            assert part * (room - area) + area >= longest[owner] - 1e-6


@pytest.mark.parametrize(
    ("parts", "area"),
    [
        # each partition alone holds the longest request, so the area is a sixteenth
        ([0.5, 0.5], 100),
        ([0.25] * 4, 134),  # (500 - 400) / 0.75, rounded up
        ([0.1] * 10, 378),  # (500 - 160) / 0.9
        ([0.0, 1.0], 500),
        ([1.0], 100),
        ([], 0),
    ],
)
def test_the_smallest_of_equal_parts_decides(parts: list[float], area: int) -> None:
    named = {str(at): part for at, part in enumerate(parts)}
    assert working_area(1600, dict.fromkeys(named, 500), named) == area


def test_a_small_part_whose_requests_are_short_needs_no_area() -> None:
    parts = {"demo": 0.9, "demo2": 0.1}
    assert working_area(1600, {"demo": 800, "demo2": 150}, parts) == 100
    assert working_area(1600, {"demo": 800, "demo2": 800}, parts) == 712
