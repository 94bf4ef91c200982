"""The comparison tells rounding differences from real differences."""

from __future__ import annotations

import math

import pytest

from engine.sentinel.comparison import FEW, LISTED, bound_for, compare

SERVED = [-0.1 * one for one in range(1, 33)]


def moved(by: float, every: int = 1) -> list[float]:
    return [one + by * (place % every == 0) for place, one in enumerate(SERVED)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_within_the_bound_is_rounding_and_what_is_beyond_is_not(dtype: str) -> None:
    bound = bound_for(dtype, len(SERVED))
    within, beyond = (compare(SERVED, moved(bound * by), 7, dtype) for by in (0.9, 1.1))
    assert not within.differs
    assert beyond.differs
    assert beyond.mean == pytest.approx(1.1 * bound)


def test_float32_is_bound_more_narrowly() -> None:
    assert bound_for("float32", 64) < bound_for("bfloat16", 64) / 10


def test_few_tokens_have_a_wider_bound() -> None:
    assert bound_for("bfloat16", 1) == pytest.approx(bound_for("bfloat16", FEW) * math.sqrt(FEW))
    assert bound_for("bfloat16", FEW) == bound_for("bfloat16", 1000)


def test_a_few_tokens_that_differ_by_much_are_found_among_many() -> None:
    assert compare(SERVED, moved(4.0, every=8), 0, "bfloat16").differs
    assert not compare(SERVED, moved(0.4, every=8), 0, "bfloat16").differs


def test_the_largest_differences_are_listed_by_position() -> None:
    again = list(SERVED)
    again[5] -= 3.0
    again[9] += 1.0
    found = compare(SERVED, again, 100, "float32")
    assert [token.position for token in found.largest[:2]] == [105, 109]
    assert found.largest[0].served - found.largest[0].again == pytest.approx(3.0)
    assert len(found.largest) == LISTED


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_is_no_number_differs(value: float) -> None:
    assert compare(SERVED, [value, *SERVED[1:]], 0, "bfloat16").differs
    assert not compare(SERVED, SERVED, 0, "bfloat16").differs
