"""Attention of rows with one new token: few queries, a long context, so a matter of bytes.

One program reads one item (`decode_items`), a part of one row's keys, for one KV head, once,
for all the query heads that share it (padded to 16 rows, so that the matrix units are used):

    grid (items, KV heads)  ->  the row's output, where it has one item; else a partial output
                                and its log-sum-exp, float32
    combine: out = sum_i exp2(lse_i - max lse) partial_i / sum_i exp2(lse_i - max lse)

The grid follows from bounds alone; items and lengths are read on the device, so the launch can
be captured in a CUDA graph. Does not know rows with more than one new token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_tile import LOG2_E, attend_tile
from kernels.batch_layout import BatchLayout
from kernels.decode_items import TARGET_ITEMS

_QUERY_ROWS = 16  # the least that the matrix units take
_PARTS = 16  # partial outputs combined at a time


@triton.jit(do_not_specialize=["table_stride"])
def _attend_kernel(
    q: tl.tensor,
    kv: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    item_rows: tl.tensor,
    item_starts: tl.tensor,
    row_items: tl.tensor,
    item_keys: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    partial_lse: tl.tensor,
    log2_scale: tl.tensor,
    table_stride: tl.tensor,
    block_stride: tl.tensor,
    value_stride: tl.tensor,
    head_stride: tl.tensor,
    GROUP: tl.constexpr,
    B: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    M: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    item, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(item_rows + item).to(tl.int64)
    start = tl.load(item_starts + item)
    end = tl.minimum(start + tl.load(item_keys), tl.load(context_lens + row))
    if start < end:
        several = tl.load(row_items + row + 1) - tl.load(row_items + row) > 1
        member, column = tl.arange(0, M), tl.arange(0, D_PADDED)
        heads = tl.num_programs(1) * GROUP
        head = kv_head * GROUP + member
        inside = (member < GROUP)[:, None] & (column < D)[None, :]
        place = (row * heads + head)[:, None] * D + column[None, :]
        queries = tl.load(q + place, mask=inside, other=0.0)
        acc = tl.zeros([M, D_PADDED], dtype=tl.float32)
        m = tl.full([M], float("-inf"), dtype=tl.float32)
        total = tl.zeros([M], dtype=tl.float32)
        last_key = tl.zeros([M], dtype=tl.int32) + (end - 1)
        keys_of_head = kv + kv_head.to(tl.int64) * head_stride
        table = block_tables + row * table_stride
        whole = start + (end - start) // TILE * TILE
        for tile in tl.range(start, whole, TILE):
            acc, m, total = attend_tile(
                queries, acc, m, total, keys_of_head, table, tile, end, last_key, log2_scale,
                block_stride, value_stride, B, D, D_PADDED, TILE, False,
            )  # fmt: skip
        if whole < end:
            acc, m, total = attend_tile(
                queries, acc, m, total, keys_of_head, table, whole, end, last_key, log2_scale,
                block_stride, value_stride, B, D, D_PADDED, TILE, True,
            )  # fmt: skip
        result = acc / total[:, None]
        if several:
            part = item * heads + head
            tl.store(partial + part[:, None] * D + column[None, :], result, mask=inside)
            tl.store(partial_lse + part, m + tl.log2(total), mask=member < GROUP)
        else:
            tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _combine_kernel(
    partial: tl.tensor,
    partial_lse: tl.tensor,
    row_items: tl.tensor,
    out: tl.tensor,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    MOST: tl.constexpr,
) -> None:
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.num_programs(1)
    first = tl.load(row_items + row).to(tl.int64)
    end = tl.load(row_items + row + 1).to(tl.int64)
    if end - first > 1:
        every = first + tl.arange(0, MOST)
        lse = tl.load(partial_lse + every * heads + head, mask=every < end, other=float("-inf"))
        greatest = tl.max(lse, axis=0)
        whole = tl.sum(tl.exp2(lse - greatest), axis=0)
        column = tl.arange(0, D_PADDED)
        result = tl.zeros([D_PADDED], dtype=tl.float32)
        for start in tl.range(first, end, PARTS):
            item = start + tl.arange(0, PARTS)
            there = item < end
            place = item * heads + head
            some = tl.load(partial_lse + place, mask=there, other=float("-inf"))
            wanted = there[:, None] & (column < D)[None, :]
            parts = tl.load(partial + place[:, None] * D + column, mask=wanted, other=0.0)
            result += tl.sum(parts * tl.exp2(some - greatest)[:, None], axis=0)
        goal = out + (row * heads + head) * D + column
        tl.store(goal, (result / whole).to(out.dtype.element_ty), mask=column < D)


def launch(q: Tensor, kv: Tensor, layout: BatchLayout, scale: float, out: Tensor) -> None:
    """Attend the decode rows of q (T, Hq, D) and write theirs into out."""
    rows = layout.num_decodes
    if not rows:
        return
    heads, head_dim = q.shape[1:]
    _, _, kv_heads, block_size, _ = kv.shape
    padded = triton.next_power_of_2(head_dim)
    items = layout.items
    num_items = items.rows.shape[0]
    parts = num_items if items.combines else 1
    partial = torch.empty((parts, heads, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((parts, heads), dtype=torch.float32, device=q.device)
    _attend_kernel[(num_items, kv_heads)](
        q,
        kv,
        layout.context_lens,
        layout.block_tables,
        items.rows,
        items.starts,
        items.row_items,
        items.keys,
        out,
        partial,
        lse,
        scale * LOG2_E,
        layout.block_tables.stride(0),
        *kv.stride()[:3],
        GROUP=heads // kv_heads,
        B=block_size,
        D=head_dim,
        D_PADDED=padded,
        M=_QUERY_ROWS,
        TILE=_tile_keys(padded, q.dtype),
        num_warps=4,
        num_stages=2 if q.dtype == torch.float32 else 3,
    )
    if items.combines:
        _combine_kernel[(rows, heads)](
            partial,
            lse,
            items.row_items,
            out,
            D=head_dim,
            D_PADDED=padded,
            PARTS=_PARTS,
            MOST=triton.next_power_of_2(TARGET_ITEMS),
        )


def _tile_keys(padded_dim: int, dtype: torch.dtype) -> int:
    """Keys a tile: 64 of 128 numbers of 2 bytes, and as many bytes of other shapes."""
    return min(max(64 * 128 * 2 // (padded_dim * dtype.itemsize), 16), 128)
