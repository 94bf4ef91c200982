"""The attention of rows with several new tokens over their cached prefix and the new tokens.

This is FlashAttention over paged keys. One program computes one query block: BLOCK_Q successive new
tokens of one row, with all query heads of one KV head, BLOCK_M query rows in total. The program
reads the row's keys tile by tile:

    keys   | tiles that all queries attend to        | tiles across the diagonal |  not read
           |            no mask                       |         masked            |

With a window, the program begins at the tile in which the first query's window begins. Tiles are
masked if a query attends only to a part of them. If there are too few query blocks to use the full
device, the keys of each block are divided among several programs, and their partial outputs are
merged. The query blocks of all rows are numbered in one sequence (`row_blocks`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import merge_attention
from kernels.attention.attention_tile import LOG2_E, attend_tile, average, average_with_sink
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv.fp8_kv import is_fp8, scales_of_head
from kernels.attention.prefill import hopper_prefill
from kernels.attention.prefill.widen_kv import MAX_WIDENED, widen, widened_tokens
from kernels.attention.tuning import (
    LEAST_HOPPER_WINDOW,
    PrefillTuning,
    hopper_tuning,
    prefill_tuning,
)
from kernels.attention.variant import AttentionVariant
from kernels.launch.capability import HOPPER, capability
from kernels.launch.rounding import next_power_of_2
from kernels.launch.row_blocks import count_row_blocks, first_row_block, row_of_block

HOPPER_HEAD_DIMS = (64, 128, 256, 512)
_MAX_SPLITS = 64


@triton.jit(do_not_specialize=["first_row", "end_row", "tokens", "table_stride"])
def _prefill_attention_kernel(
    q: tl.tensor,
    kv: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    out: tl.tensor,
    partial_lse: tl.tensor,
    sinks: tl.tensor,
    log2_scale: tl.tensor,
    first_row: tl.tensor,
    end_row: tl.tensor,
    tokens: tl.tensor,
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
    SPLIT: tl.constexpr,
    SCALED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> None:
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    # The last blocks of a row have the most keys, so they start first.
    query_block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row = row_of_block(query_starts, query_block, first_row, end_row, BLOCK_Q)
    row_start = tl.load(query_starts + row)
    new_tokens = tl.load(query_starts + row + 1) - row_start
    local = query_block - first_row_block(query_starts, row, first_row, BLOCK_Q)
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
        start = 0
        if WINDOW is not None:
            start = tl.maximum(prefix + first_token + 1 - WINDOW, 0) // TILE * TILE
            # From key `inner` on, tiles begin inside the windows of all queries.
            inner = tl.cdiv(tl.maximum(end - WINDOW, 0), TILE) * TILE
        if SPLIT:
            keys = tl.cdiv(tl.cdiv(end - start, TILE), tl.num_programs(2)) * TILE
            start += tl.program_id(2) * keys
            end = tl.minimum(start + keys, end)
        keys_of_head = kv + kv_head.to(tl.int64) * head_stride
        scales = kv
        if SCALED:
            scales = scales_of_head(kv, kv_head, tl.num_programs(1), B, D)
        table = block_tables + row.to(tl.int64) * table_stride
        if WINDOW is not None:
            for tile in tl.range(start, tl.minimum(inner, end), TILE):
                acc, m, total = attend_tile(
                    queries, acc, m, total, keys_of_head, scales, table, tile, end, last_key,
                    log2_scale, block_stride, value_stride, B, D, D_PADDED, TILE, True, SCALED,
                    SOFTCAP, last_key - (WINDOW - 1), True, 0,
                )  # fmt: skip
            start = tl.maximum(start, inner)
        for tile in tl.range(start, tl.minimum(diagonal, end), TILE):
            acc, m, total = attend_tile(
                queries, acc, m, total, keys_of_head, scales, table, tile, end, last_key,
                log2_scale, block_stride, value_stride, B, D, D_PADDED, TILE, False, SCALED,
                SOFTCAP, last_key, False, 0,
            )  # fmt: skip
        for tile in tl.range(tl.maximum(start, diagonal), end, TILE):
            acc, m, total = attend_tile(
                queries, acc, m, total, keys_of_head, scales, table, tile, end, last_key,
                log2_scale, block_stride, value_stride, B, D, D_PADDED, TILE, True, SCALED,
                SOFTCAP, last_key, False, 0,
            )  # fmt: skip
        if SPLIT:
            slot = tl.program_id(2).to(tl.int64) * tokens + row_start + token - first_row
            slot = slot * tl.num_programs(1) * GROUP + head
            tl.store(partial_lse + slot, m + tl.log2(tl.where(total == 0.0, 1.0, total)), mask=real)
            place = slot[:, None] * D + column[None, :]
        if not SPLIT and sinks is not None:
            result = average_with_sink(acc, m, total, tl.load(sinks + head))
        else:
            result = average(acc, total)
        result = result.to(out.dtype.element_ty)
        tl.store(out + place, result, mask=inside)


def launch(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    variant: AttentionVariant,
    sinks: Tensor | None,
    out: Tensor,
) -> None:
    """Compute attention of the rows of q (T, Hq, D) after `layout.num_decodes` into `out`.

    `kv` (N, 2, Hkv, B, D) is one layer of the pool, of q's dtype or fp8. `out` has the shape and
    dtype of q, and only these rows of it are written. `sinks` is (Hq,) or None. For Hopper's
    kernel, fp8 keys of up to MAX_WIDENED tokens are first converted to 16 bits, unless there is a
    window.
    """
    if layout.num_decodes == layout.num_rows:
        return
    if is_fp8(kv) and _is_for_widened(q, kv, layout, variant):
        kv, layout = widen(kv, layout, q.dtype)
    launch_tuned(q, kv, layout, variant, sinks, tuning_for(q, kv, variant), out)


def _is_for_widened(q: Tensor, kv: Tensor, layout: BatchLayout, variant: AttentionVariant) -> bool:
    is_whole = variant.window is None
    return is_whole and _is_for_hopper(q, kv, variant) and widened_tokens(layout) <= MAX_WIDENED


def tuning_for(q: Tensor, kv: Tensor, variant: AttentionVariant) -> PrefillTuning:
    """Choose the fastest kernel and its tile sizes for these dtypes and shapes."""
    if kv.dtype == q.dtype and _is_for_hopper(q, kv, variant):
        return hopper_tuning(q.shape[2])
    return prefill_tuning(q.shape[2], q.dtype, variant.window)


def _is_for_hopper(q: Tensor, kv: Tensor, variant: AttentionVariant) -> bool:
    return (
        capability(q.device) == HOPPER
        and q.dtype.itemsize == 2
        and q.shape[2] in HOPPER_HEAD_DIMS
        and variant.softcap is None
        and (variant.window is None or variant.window >= LEAST_HOPPER_WINDOW)
        and hopper_prefill.num_slots(kv) < 2**31  # TMA counts slots in 32 bits
    )


def launch_tuned(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    variant: AttentionVariant,
    sinks: Tensor | None,
    tuning: PrefillTuning,
    out: Tensor,
) -> None:
    """Launch the kernel that `tuning` selects. For Hopper's kernel, kv must have q's dtype."""
    first, (tokens, heads, head_dim) = layout.num_decodes, q.shape
    attend = hopper_prefill.attend if tuning.is_for_hopper else _attend
    block_q = tuning.queries // (heads // kv.shape[2])
    blocks = count_row_blocks(tokens - first, layout.num_rows - first, block_q)
    most_keys = layout.max_context_len
    if variant.window is not None:
        most_keys = min(most_keys, variant.window + block_q)
    splits = num_splits(blocks * kv.shape[2], most_keys, tuning)
    if splits == 1:
        attend(q, kv, layout, variant, sinks, tuning, (blocks, 1), out, out)
        return
    shape = (splits, tokens - first, heads)
    partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    attend(q, kv, layout, variant, sinks, tuning, (blocks, splits), partial, lse)
    merge_attention.merge_splits(partial, lse, out[first:], sinks)


def num_splits(programs: int, most_keys: int, tuning: PrefillTuning) -> int:
    """Choose the number of programs, 1 to 64, that divide the keys of a query block.

    It is the largest number for which all programs run at the same time. `programs` is the number
    of programs without division. A query block has at most `most_keys` keys, and each program gets
    at least `tuning.least_keys` of them.
    """
    to_fill = tuning.programs // programs
    return max(min(to_fill, most_keys // tuning.least_keys, _MAX_SPLITS), 1)


def _attend(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    variant: AttentionVariant,
    sinks: Tensor | None,
    tuning: PrefillTuning,
    grid: tuple[int, int],
    out: Tensor,
    lse: Tensor,
) -> None:
    """Launch the kernel over `grid` (query blocks, splits). Each split writes to out and lse."""
    tokens, heads, head_dim = q.shape
    kv_heads, block_size = kv.shape[2:4]
    blocks, splits = grid
    _prefill_attention_kernel[(blocks, kv_heads, splits)](
        q,
        kv,
        layout.query_starts,
        layout.context_lens,
        layout.block_tables,
        out,
        lse,
        sinks,
        variant.scale * LOG2_E,
        layout.num_decodes,
        layout.num_rows,
        tokens - layout.num_decodes,
        layout.block_tables.stride(0),
        *kv.stride()[:3],
        GROUP=heads // kv_heads,
        B=block_size,
        D=head_dim,
        D_PADDED=next_power_of_2(head_dim),
        BLOCK_M=tuning.queries,
        TILE=tuning.tile,
        SPLIT=splits > 1,
        SCALED=is_fp8(kv),
        WINDOW=variant.window,
        SOFTCAP=variant.softcap,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
    )
