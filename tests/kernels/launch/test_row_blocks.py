"""The numbering of blocks of rows: a kernel visits each block once, whatever the rows' lengths."""

from __future__ import annotations

import os
import random

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.row_blocks import count_row_blocks, first_row_block, row_of_block

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on CPU tensors only interpreted"
)


@triton.jit
def _places(
    row_starts: tl.tensor, places: tl.tensor, first: int, end: int, SIZE: tl.constexpr
) -> None:
    block = tl.program_id(0)
    row = row_of_block(row_starts, block, first, end, SIZE)
    begin = (block - first_row_block(row_starts, row, first, SIZE)) * SIZE
    tl.store(places + 2 * block, row)
    tl.store(places + 2 * block + 1, begin)


def met(lengths: list[int], decodes: int, size: int) -> list[tuple[int, int]]:
    """Return each block that has tokens, as its row and first token."""
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    rows = len(lengths) - decodes
    count = count_row_blocks(int(starts[-1]) - decodes, rows, size)
    places: Tensor = torch.full((count, 2), -1, dtype=torch.int32)
    if count:
        _places[(count,)](starts, places, decodes, len(lengths), SIZE=size)
    return [(row, begin) for row, begin in places.tolist() if begin < lengths[row]]


@pytest.mark.parametrize("seed", range(12))
def test_each_block_is_met_once(seed: int) -> None:
    draw = random.Random(seed)
    decodes, size = draw.choice([0, 1, 3]), draw.choice([1, 4, 16])
    lengths = [1] * decodes + [draw.choice([0, 1, 4, 5, 15, 16, 17]) for _ in range(5)]
    wanted = [
        (row, begin)
        for row, length in enumerate(lengths)
        if row >= decodes
        for begin in range(0, length, size)
    ]
    assert met(lengths, decodes, size) == wanted


def test_rows_without_tokens() -> None:
    assert met([1, 0, 0], 1, 16) == []
    assert met([1, 0, 1], 1, 16) == [(2, 0)], "the control"
