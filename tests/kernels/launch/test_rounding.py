"""Sizes are rounded as Triton's functions of the same names round them."""

from __future__ import annotations

import pytest
import triton

from kernels.launch.rounding import cdiv, next_power_of_2

SIZES = (1, 2, 3, 7, 8, 9, 127, 128, 129, 4095, 4096, 4097, 128_256, 2**31 - 1)


@pytest.mark.parametrize("part", [1, 3, 64, 4096])
def test_parts_that_hold_all(part: int) -> None:
    assert cdiv(0, part) == 0
    for total in SIZES:
        assert cdiv(total, part) == triton.cdiv(total, part)
        assert (cdiv(total, part) - 1) * part < total <= cdiv(total, part) * part


def test_the_next_power() -> None:
    for least in SIZES:
        assert next_power_of_2(least) == triton.next_power_of_2(least)
        assert next_power_of_2(least) // 2 < least <= next_power_of_2(least)
