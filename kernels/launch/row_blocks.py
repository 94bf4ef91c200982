"""The blocks of tokens into which rows of several tokens are divided, numbered in one sequence.

    tokens   | a  a  a  a  a | b  b | c  c  c |         rows of 5, 2 and 3 tokens, SIZE 2
    block    |   0    1   2  |  3   |  5   6  |         block 4 has no tokens

Row r begins with block number (tokens before row r) // SIZE + r. The numbers of tokens and rows
alone give the host an upper bound of the block numbers. The lengths of rows on the device may
therefore change between replays of a captured launch. With R rows, fewer than R block numbers are
unused.
"""

from __future__ import annotations

import triton
import triton.language as tl


def count_row_blocks(tokens: int, rows: int, size: int) -> int:
    """Return an upper bound of block numbers of `rows` rows with `tokens` tokens in all, plus 1."""
    return (tokens - 1) // size + rows


@triton.jit
def first_row_block(
    row_starts: tl.tensor, row: tl.tensor, first: tl.tensor, SIZE: tl.constexpr
) -> tl.tensor:
    """Return the first block of `row`. Each row before `first` has one token and no block."""
    return (tl.load(row_starts + row) - first) // SIZE + row - first


@triton.jit
def row_of_block(
    row_starts: tl.tensor, block: tl.tensor, first: tl.tensor, end: tl.tensor, SIZE: tl.constexpr
) -> tl.tensor:
    """Find the last row in [first, end) whose first block is `block` or an earlier block."""
    low, high = first, end
    while low + 1 < high:
        middle = (low + high) // 2
        if first_row_block(row_starts, middle, first, SIZE) <= block:
            low = middle
        else:
            high = middle
    return low
