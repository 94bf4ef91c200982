"""Attention of rows with several new tokens over their cached prefix and themselves.

One program takes one query block: BLOCK_Q consecutive new tokens of one row with all the
query heads of one KV head, BLOCK_M query rows in all. It walks the row's keys tile by tile:

    keys   | tiles that every query of the block sees | tiles across the diagonal |  not read
           |            no mask                       |         masked            |

The rows' query blocks are numbered through: row r begins at `query_starts[r] // BLOCK_Q + r`,
which needs nothing from the host but T and R and leaves at most one idle program a row.
Does not know rows the decode kernel serves, though a row of one token is right here too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_tile import LOG2_E, attend_tile
from kernels.batch_layout import BatchLayout


@triton.jit
def _first_query_block(
    query_starts: tl.tensor, row: tl.tensor, first: tl.tensor, BLOCK_Q: tl.constexpr
) -> tl.tensor:
    """Number of the first query block of `row`; rows before `first` have one token and no block."""
    return (tl.load(query_starts + row) - first) // BLOCK_Q + row - first


@triton.jit
def _row_of_query_block(
    query_starts: tl.tensor,
    query_block: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    BLOCK_Q: tl.constexpr,
) -> tl.tensor:
    """The last row in [first, end) whose first query block is not behind `query_block`."""
    low, high = first, end
    while low + 1 < high:
        middle = (low + high) // 2
        if _first_query_block(query_starts, middle, first, BLOCK_Q) <= query_block:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["first_row", "end_row", "table_stride"])
def _kernel(
    q: tl.tensor,
    kv: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out: tl.tensor,
    log2_scale: tl.tensor,
    first_row: tl.tensor,
    end_row: tl.tensor,
    table_stride: tl.tensor,
    block_stride: tl.tensor,
    value_stride: tl.tensor,
    head_stride: tl.tensor,
    GROUP: tl.constexpr,
    B: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    # The last blocks of a row see the most keys: they start first.
    query_block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row = _row_of_query_block(query_starts, query_block, first_row, end_row, BLOCK_Q)
    row_start = tl.load(query_starts + row)
    new_tokens = tl.load(query_starts + row + 1) - row_start
    local = query_block - _first_query_block(query_starts, row, first_row, BLOCK_Q)
    first_token = local * BLOCK_Q
    if first_token < new_tokens:
        prefix = tl.load(context_lens + row) - new_tokens
        member, column = tl.arange(0, BLOCK_M), tl.arange(0, D_PADDED)
        token = first_token + member // GROUP
        real = (member < BLOCK_Q * GROUP) & (token < new_tokens)
        head = kv_head * GROUP + member % GROUP
        place = ((row_start + token).to(tl.int64) * tl.num_programs(1) * GROUP + head) * D
        place = place[:, None] + column[None, :]
        inside = real[:, None] & (column < D)[None, :]
        queries = tl.load(q + place, mask=inside, other=0.0)

        acc = tl.zeros([BLOCK_M, D_PADDED], dtype=tl.float32)
        m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK_M], dtype=tl.float32)
        last_key = prefix + token
        end = prefix + tl.minimum(first_token + BLOCK_Q, new_tokens)
        diagonal = (prefix + first_token + 1) // TILE * TILE
        keys_of_head = kv + kv_head.to(tl.int64) * head_stride
        table = block_tables + row.to(tl.int64) * table_stride
        for tile in tl.range(0, diagonal, TILE):
            acc, m, total = attend_tile(
                queries, acc, m, total, keys_of_head, table, tile, end, last_key, log2_scale,
                block_stride, value_stride, B, D, D_PADDED, TILE, False,
            )  # fmt: skip
        for tile in tl.range(diagonal, end, TILE):
            acc, m, total = attend_tile(
                queries, acc, m, total, keys_of_head, table, tile, end, last_key, log2_scale,
                block_stride, value_stride, B, D, D_PADDED, TILE, True,
            )  # fmt: skip
        result = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + place, result, mask=inside)


def launch(q: Tensor, kv: Tensor, layout: BatchLayout, scale: float, out: Tensor) -> None:
    """Attend the rows behind `layout.num_decodes` of q (T, Hq, D) and write theirs into out."""
    first, rows = layout.num_decodes, layout.num_rows
    tokens, heads, head_dim = q.shape
    if first == rows:
        return
    _, _, kv_heads, block_size, _ = kv.shape
    group = heads // kv_heads
    padded = triton.next_power_of_2(head_dim)
    block_m, tile, warps, stages = _tiling(padded, q.dtype)
    query_blocks = (tokens - first) // (block_m // group) + rows - first
    _kernel[(query_blocks, kv_heads)](
        q,
        kv,
        layout.query_starts,
        layout.context_lens,
        layout.block_tables,
        out,
        scale * LOG2_E,
        first,
        rows,
        layout.block_tables.stride(0),
        *kv.stride()[:3],
        GROUP=group,
        B=block_size,
        D=head_dim,
        D_PADDED=padded,
        BLOCK_M=block_m,
        TILE=tile,
        num_warps=warps,
        num_stages=stages,
    )


def _tiling(padded_dim: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """(query rows, keys a tile, warps, tiles in flight), by what registers and memory hold."""
    if dtype == torch.float32:
        return (32, 32, 4, 1) if padded_dim <= 128 else (16, 16, 4, 1)
    return (128, 128, 8, 2) if padded_dim <= 128 else (64, 32, 4, 2)
