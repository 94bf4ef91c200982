"""The division of queries and latents among programs: query blocks, and splits of their latents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kernels.launch.rounding import cdiv
from kernels.launch.row_blocks import count_row_blocks

_MULTIPROCESSORS = 132  # of an H200
_LEAST_KEYS = 128  # minimum number of keys in a split
_MAX_SPLITS = 64


@dataclass(frozen=True, slots=True)
class QueryBlocks:
    """The query blocks of the rows `first` up to `end` of a step.

    A block has `heads` heads of `tokens` tokens of a row. `splits` programs share its latents.
    """

    first: int
    end: int
    tokens: int
    heads: int
    count: int  # maximum number of blocks with the same heads
    splits: int


def heads_together(heads: int, most: int) -> int:
    """Return the number of heads of one program: at most `most`, and a divisor of `heads`."""
    return max(count for count in range(1, most + 1) if heads % count == 0)


def divide(
    tokens: int,
    heads: int,
    rows: tuple[int, int],
    block: tuple[int, int],
    max_context_len: int,
    decode_programs: int | None,
) -> QueryBlocks:
    """Divide `heads` heads of `tokens` tokens into blocks of `block` (tokens, heads).

    `decode_programs` is the number of programs for each multiprocessor if all rows are decodes,
    else None.
    """
    (first, end), (each, group) = rows, block
    count = count_row_blocks(tokens, end - first, each)
    most = max(min(max_context_len // _LEAST_KEYS, _MAX_SPLITS), 1)
    programs = count * (heads // group)
    if decode_programs is None:
        splits = prompt_splits(programs, most)
    else:
        splits = decode_splits(programs, most, decode_programs)
    return QueryBlocks(first, end, each, group, count, splits)


def decode_splits(programs: int, most: int, each: int) -> int:
    """Choose the number of programs, from 1 to `most`, that divide the latents of a decode.

    A multiprocessor gets up to `each` programs. More than one evens out contexts of different
    lengths.
    """
    return max(min(each * _MULTIPROCESSORS // programs, most), 1)


@lru_cache(maxsize=256)  # every layer of a step asks for the same
def prompt_splits(programs: int, most: int) -> int:
    """Choose the number of programs, 1 to `most`, that divide the latents of a query block.

    A multiprocessor has space for only one program at a time, so programs run in waves. The last
    wave should be nearly full. Each additional program adds a little work, because its results must
    be merged (`merge_attention`).
    """

    def cost(splits: int) -> float:
        waves = cdiv(programs * splits, _MULTIPROCESSORS)
        return waves / splits * (1 + 0.01 * splits)

    return min(range(1, most + 1), key=cost)
