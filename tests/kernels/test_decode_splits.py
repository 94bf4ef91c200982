"""Into how many parts a decode row's keys are cut."""

from __future__ import annotations

import pytest

from kernels.decode_attention import num_splits


@pytest.mark.parametrize(
    ("work", "context", "splits"),
    [
        (1, 1, 1),
        (8, 511, 1),
        (8, 512, 2),
        (8, 4_096, 16),
        (8, 131_072, 64),
        (512, 8_192, 2),
        (2_048, 131_072, 1),
    ],
)
def test_enough_to_fill_the_device_and_none_too_short(work: int, context: int, splits: int) -> None:
    assert num_splits(work, context) == splits


def test_is_always_a_power_of_two_in_bounds() -> None:
    for work in range(1, 3_000, 37):
        for context in range(1, 140_000, 997):
            splits = num_splits(work, context)
            assert 1 <= splits <= 64
            assert splits & (splits - 1) == 0
