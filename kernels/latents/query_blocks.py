"""The division of queries and latents among programs: query blocks, and splits of their latents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from kernels.attention.batch_layout import BatchLayout
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
    count: int  # number of blocks for each group of heads; for prompts an upper bound
    splits: int
    are_decodes: bool


def heads_together(heads: int, most: int) -> int:
    """Return the number of heads of one program: at most `most`, and a divisor of `heads`."""
    return max(count for count in range(1, most + 1) if heads % count == 0)


def divide(
    q: Tensor,
    layout: BatchLayout,
    rows: tuple[int, int],
    most_heads: int,
    tokens_of_prompts: Callable[[int], int],
    decode_programs: int,
) -> QueryBlocks:
    """Divide the queries q (t, H, R + P) of the rows into blocks.

    A block has at most `most_heads` heads. `tokens_of_prompts` returns the tokens of a prompt's
    block from its number of heads. A multiprocessor gets up to `decode_programs` programs of
    decodes.
    """
    (tokens, heads, _), (first, end) = q.shape, rows
    group, decodes = heads_together(heads, most_heads), end == layout.num_decodes
    each = 1 if decodes else tokens_of_prompts(group)
    # The number of a decode's block is its row, without a search, so `count` must be exact.
    count = tokens if decodes else count_row_blocks(tokens, end - first, each)
    most = max(min(layout.max_context_len // _LEAST_KEYS, _MAX_SPLITS), 1)
    programs = count * (heads // group)
    if decodes:
        splits = decode_splits(programs, most, decode_programs)
    else:
        splits = prompt_splits(programs, most)
    return QueryBlocks(first, end, each, group, count, splits, decodes)


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
