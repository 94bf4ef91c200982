"""Every tile of every item is scheduled to exactly one split, whatever the lengths."""

from __future__ import annotations

import math
import os

import pytest
import torch
import triton
import triton.language as tl

from kernels.attention.decode.schedule_splits import schedule

TILE, AT_ONCE = 16, 8


@triton.jit(do_not_specialize=["items", "size"])
def _deal_one(
    lengths: tl.tensor,
    scheduled: tl.tensor,
    items: tl.tensor,
    size: tl.tensor,
    TILE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    split = tl.program_id(0)
    item, first = schedule(
        split, items, size, lengths, lengths, lengths, 1, 1, False, TILE, AT_ONCE
    )  # fmt: skip
    tl.store(scheduled + split * 2, item)
    tl.store(scheduled + split * 2 + 1, first)


def deal_all(lengths: list[int], size: int) -> list[list[int]]:
    """Return (item, first split of the item) for each split, and for some unused splits."""
    splits = sum(max(math.ceil(length / TILE / size), 1) for length in lengths) + 5
    scheduled = torch.full((splits, 2), -1, dtype=torch.int32)
    numbers = torch.tensor(lengths, dtype=torch.int32)
    _deal_one[(splits,)](numbers, scheduled, len(lengths), size, TILE, AT_ONCE)
    rows: list[list[int]] = scheduled.tolist()
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
        [2_000],
        [0, 0, 700, 0],
        [100] * 8,
        [100] * 9,
        [16 * n * n for n in range(7)],
        [700, 3, 0, 40, 0, 300, 300, 17, 1, 1, 1, 100],
    ],
    ids=str,
)
def test_each_item_has_its_tiles_in_consecutive_units(lengths: list[int], size: int) -> None:
    scheduled = deal_all(lengths, size)
    expected_first = 0
    for item, length in enumerate(lengths):
        splits = [split for split, (owner, _) in enumerate(scheduled) if owner == item]
        tiles = math.ceil(length / TILE)
        needed = max(math.ceil(tiles / size), 1)
        assert splits == list(range(expected_first, expected_first + needed))
        assert all(scheduled[split][1] == expected_first for split in splits)
        expected_first += needed
    assert len(scheduled) > expected_first
    assert all(item == len(lengths) for item, _ in scheduled[expected_first:])
