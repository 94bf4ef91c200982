"""Every tile of every item is dealt to one unit, whatever the lengths, and none to two."""

from __future__ import annotations

import math
import os

import pytest
import torch
import triton
import triton.language as tl

from kernels.deal_units import deal

TILE, AT_ONCE = 16, 8


@triton.jit(do_not_specialize=["items", "size"])
def _deal_one(
    lengths: tl.tensor,
    dealt: tl.tensor,
    items: tl.tensor,
    size: tl.tensor,
    TILE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    unit = tl.program_id(0)
    item, first = deal(
        unit, items, size, lengths, lengths, lengths, 1, 1, False, TILE, AT_ONCE
    )  # fmt: skip
    tl.store(dealt + unit * 2, item)
    tl.store(dealt + unit * 2 + 1, first)


def deal_all(lengths: list[int], size: int) -> list[list[int]]:
    """[item, first unit of the item] of each unit, and of some more than there are."""
    units = sum(max(math.ceil(length / TILE / size), 1) for length in lengths) + 5
    dealt = torch.full((units, 2), -1, dtype=torch.int32)
    numbers = torch.tensor(lengths, dtype=torch.int32)
    _deal_one[(units,)](numbers, dealt, len(lengths), size, TILE, AT_ONCE)
    rows: list[list[int]] = dealt.tolist()
    return rows


@pytest.fixture(autouse=True)
def _interpreted() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run on CPU tensors in the interpreter only")


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
@pytest.mark.parametrize(
    "lengths",
    [
        [1],
        [0],
        [5_000],
        [0, 0, 700, 0],
        [100] * 8,
        [100] * 9,
        [16 * n * n for n in range(10)],
        [2_000, 3, 0, 40, 0, 900, 900, 17, 1, 1, 1, 300],
    ],
    ids=str,
)
def test_each_item_has_its_tiles_in_consecutive_units(lengths: list[int], size: int) -> None:
    dealt = deal_all(lengths, size)
    expected_first = 0
    for item, length in enumerate(lengths):
        units = [unit for unit, (owner, _) in enumerate(dealt) if owner == item]
        tiles = math.ceil(length / TILE)
        needed = max(math.ceil(tiles / size), 1)
        assert units == list(range(expected_first, expected_first + needed))
        assert all(dealt[unit][1] == expected_first for unit in units)
        expected_first += needed
    assert len(dealt) > expected_first
    assert all(item == len(lengths) for item, _ in dealt[expected_first:])
