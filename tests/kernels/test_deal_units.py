"""Every tile of every item is dealt to one unit, whatever the lengths, and none to two."""

from __future__ import annotations

import math
import os

import pytest
import torch
import triton
import triton.language as tl

from kernels.deal_units import deal

TILE, USUAL, LEAST, AT_ONCE = 16, 4, 2, 8


@triton.jit(do_not_specialize=["items", "fine", "coarse"])
def _deal_one(
    lengths: tl.tensor,
    dealt: tl.tensor,
    items: tl.tensor,
    fine: tl.tensor,
    coarse: tl.tensor,
    TILE: tl.constexpr,
    USUAL: tl.constexpr,
    LEAST: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    unit = tl.program_id(0)
    item, first, size = deal(
        unit, items, fine, coarse, lengths, lengths, lengths, 1, 1, False, TILE, USUAL, LEAST,
        AT_ONCE,
    )  # fmt: skip
    tl.store(dealt + unit * 3, item)
    tl.store(dealt + unit * 3 + 1, first)
    tl.store(dealt + unit * 3 + 2, size)


def deal_all(lengths: list[int], fine: int, coarse: int) -> list[list[int]]:
    """[item, first unit of the item, tiles at most] of each unit that a launch would have."""
    units = max(fine, coarse) + len(lengths)
    dealt = torch.full((units, 3), -1, dtype=torch.int32)
    numbers = torch.tensor(lengths, dtype=torch.int32)
    _deal_one[(units,)](numbers, dealt, len(lengths), fine, coarse, TILE, USUAL, LEAST, AT_ONCE)
    rows: list[list[int]] = dealt.tolist()
    return rows


@pytest.fixture(autouse=True)
def _interpreted() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run on CPU tensors in the interpreter only")


@pytest.mark.parametrize(("fine", "coarse"), [(1, 1), (12, 6)])
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
def test_each_item_has_its_tiles_in_consecutive_units(
    lengths: list[int], fine: int, coarse: int
) -> None:
    dealt = deal_all(lengths, fine, coarse)
    expected_first = 0
    for item, length in enumerate(lengths):
        units = [unit for unit, (owner, _, _) in enumerate(dealt) if owner == item]
        size = dealt[units[0]][2]
        tiles = math.ceil(length / TILE)
        needed = max(math.ceil(tiles / size), 1)
        assert units == list(range(expected_first, expected_first + needed))
        assert all(dealt[unit][1] == expected_first for unit in units)
        expected_first += needed
    assert all(item == len(lengths) for item, _, _ in dealt[expected_first:])


def test_units_are_fine_where_work_is_plenty_and_few_where_it_is_little() -> None:
    def size(tiles: int) -> int:
        return deal_all([tiles * TILE], 10, 4)[0][2]

    assert [size(tiles) for tiles in (1, 8, 12, 16, 40, 100)] == [2, 2, 3, 4, 4, 10]
