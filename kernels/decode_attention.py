"""Attention of rows with one new token: few queries, a long context, so a matter of bytes.

One program reads one equal part of one row's keys for one KV head, once, for all the query
heads that share it (padded to 16 rows, so that the matrix units are used):

    grid (decode rows, KV heads, splits)  ->  partial outputs and their log-sum-exp, float32
    combine: out = sum_i exp2(lse_i - max lse) partial_i / sum_i exp2(lse_i - max lse)

The grid follows from the number of rows and a bound on the context alone; the lengths are
read on the device, so the launch can be captured in a CUDA graph. With one split the result
is written at once and nothing is combined. Does not know rows with more than one new token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_tile import LOG2_E, attend_tile
from kernels.batch_layout import BatchLayout

_QUERY_ROWS = 16  # the least that the matrix units take
_TARGET_PROGRAMS = 1024  # several for each multiprocessor of a large device
_MIN_KEYS_PER_SPLIT = 256
_MAX_SPLITS = 64


@triton.jit
def _split_keys(context: tl.tensor, splits: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    """Keys that each split takes: whole tiles, as equal as they come, at least one."""
    return tl.cdiv(tl.cdiv(context, TILE), splits) * TILE


@triton.jit(do_not_specialize=["table_stride"])
def _attend_kernel(
    q: tl.tensor,
    kv: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out: tl.tensor,
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
    PARTIAL: tl.constexpr,
) -> None:
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(2)
    context = tl.load(context_lens + row)
    keys = _split_keys(context, splits, TILE)
    start = split * keys
    end = tl.minimum(start + keys, context)
    if start < end:
        member, column = tl.arange(0, M), tl.arange(0, D_PADDED)
        head = row * tl.num_programs(1) * GROUP + kv_head * GROUP + member
        inside = (member < GROUP)[:, None] & (column < D)[None, :]
        queries = tl.load(q + head[:, None] * D + column[None, :], mask=inside, other=0.0)
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
        place = head * splits + split
        result = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + place[:, None] * D + column[None, :], result, mask=inside)
        if PARTIAL:
            tl.store(partial_lse + place, m + tl.log2(total), mask=member < GROUP)


@triton.jit(do_not_specialize=["splits"])
def _combine_kernel(
    partial: tl.tensor,
    partial_lse: tl.tensor,
    context_lens: tl.tensor,
    out: tl.tensor,
    splits: tl.tensor,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = row * tl.num_programs(1) + tl.program_id(1)
    context = tl.load(context_lens + row)
    split, column = tl.arange(0, MAX_SPLITS), tl.arange(0, D_PADDED)
    # A split behind the context wrote nothing: it is not read.
    written = (split < splits) & (split * _split_keys(context, splits, TILE) < context)
    lse = tl.load(partial_lse + head * splits + split, mask=written, other=float("-inf"))
    weight = tl.exp2(lse - tl.max(lse, axis=0))
    place = (head * splits + split)[:, None] * D + column[None, :]
    wanted = written[:, None] & (column < D)[None, :]
    parts = tl.load(partial + place, mask=wanted, other=0.0)
    result = tl.sum(parts * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(out + head * D + column, result.to(out.dtype.element_ty), mask=column < D)


def launch(q: Tensor, kv: Tensor, layout: BatchLayout, scale: float, out: Tensor) -> None:
    """Attend the leading `layout.num_decodes` rows of q (T, Hq, D) and write theirs into out."""
    rows = layout.num_decodes
    if not rows:
        return
    heads, head_dim = q.shape[1:]
    _, _, kv_heads, block_size, _ = kv.shape
    splits = num_splits(rows * kv_heads, layout.max_context_len)
    padded = triton.next_power_of_2(head_dim)
    tile = _tile_keys(padded, q.dtype)
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty((rows, heads, splits, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((rows, heads, splits), dtype=torch.float32, device=q.device)
    _attend_kernel[(rows, kv_heads, splits)](
        q,
        kv,
        layout.context_lens,
        layout.block_tables,
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
        TILE=tile,
        PARTIAL=splits > 1,
        num_warps=4,
        num_stages=2 if q.dtype == torch.float32 else 3,
    )
    if splits > 1:
        _combine_kernel[(rows, heads)](
            partial,
            lse,
            layout.context_lens,
            out,
            splits,
            D=head_dim,
            D_PADDED=padded,
            TILE=tile,
            MAX_SPLITS=_MAX_SPLITS,
        )


def num_splits(work: int, max_context_len: int) -> int:
    """Into how many parts each of `work` (row, KV head) pairs is cut: a power of two in 1..64.

    Enough to fill the device, but no part shorter than 256 keys at the longest context.
    """
    to_fill = -(-_TARGET_PROGRAMS // work)
    wanted = min(to_fill, max_context_len // _MIN_KEYS_PER_SPLIT, _MAX_SPLITS)
    return 1 << (max(wanted, 1).bit_length() - 1)


def _tile_keys(padded_dim: int, dtype: torch.dtype) -> int:
    """Keys a tile: 64 of 128 numbers of 2 bytes, and as many bytes of other shapes."""
    return min(max(64 * 128 * 2 // (padded_dim * dtype.itemsize), 16), 128)
