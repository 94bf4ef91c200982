"""The decode attention kernel. A program attends to one split of keys, and may merge results.

    schedule    find the item and the keys of the split, from the step's inputs
    [wait]      for the previous kernel, which writes queries and the newest keys
    attend      tile after tile
    write       the output if a row has one split, else a partial result; the last program merges

This module has only device code.

Elsewhere: the choice of splits (`split_sizes`), and the number of programs (`decode_attention`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.attention_tile import attend_tile, average, average_with_sink
from kernels.attention.decode.schedule_splits import (
    keys_in_window,
    keys_of_items,
    schedule,
    schedule_window,
)
from kernels.attention.kv.fp8_kv import scales_of_head
from kernels.attention.kv.fp8_pairs import pair_pointer, queries_of, together
from kernels.attention.merge_attention import PARTS_AT_ONCE, merge_row
from kernels.launch.dependent_launch import launch_dependents, wait_for_previous

ITEMS_AT_ONCE = tl.constexpr(128)
MIN_QUERIES = tl.constexpr(16)  # minimum number of rows of an operand of the matrix units


@triton.jit(
    do_not_specialize=[
        "table_stride",
        "count",
        "passes",
        "level",
        "first_slot",
        "window_splits",
        "window_tiles",
    ]
)
def attend_split(
    q: tl.tensor,
    kv: tl.tensor,
    block_tables: tl.tensor,
    table_stride: tl.tensor,
    items: tl.tuple,
    count: tl.tensor,
    passes: tl.tensor,
    level: tl.tensor,
    out: tl.tensor,
    partials: tl.tuple,
    first_slot: tl.tensor,
    sinks: tl.tensor,
    log2_scale: tl.tensor,
    window_splits: tl.tensor,
    window_tiles: tl.tensor,
    BLOCK_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    B: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    SHARED: tl.constexpr,
    SCALED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PAIRS: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Compute attention of split program_id(1) for KV head program_id(0).

    `items` and `partials` are the tensors of `decode_attention._Items` and `_Output`. Numbers are
    separate arguments: if they were in a tuple, Triton would compile variants for the value 1 and
    for multiples of 16. WINDOW, SOFTCAP, `window_splits`, `window_tiles` and `sinks` may be None.
    """
    group_starts, key_starts, key_ends, splits_of_level = items
    D_PADDED: tl.constexpr = triton.next_power_of_2(D)
    MEMBERS: tl.constexpr = triton.next_power_of_2(GROUP)
    M: tl.constexpr = max(triton.next_power_of_2(GROUP * ROWS), MIN_QUERIES)
    STEP: tl.constexpr = min(B, TILE)  # the first key of a tile is a multiple of STEP
    EACH: tl.constexpr = 2 if PAIRS else 1  # fp8 numbers per loaded element
    BLOCKS: tl.constexpr = BLOCK_STRIDE // EACH
    VALUES: tl.constexpr = VALUE_STRIDE // EACH
    WIDTH: tl.constexpr = D // EACH
    WIDE: tl.constexpr = D_PADDED // EACH
    launch_dependents(DEPENDENT)
    kv_head, split = tl.program_id(0), tl.program_id(1)
    item, first, size = split, split, 0
    if WINDOW is not None:
        if SPLIT:
            size = window_tiles
            item, first = schedule_window(
                split, count, size, window_splits, key_ends, WINDOW, STEP, TILE
            )
    elif SPLIT:
        size = tl.load(splits_of_level + 2 * level) // TILE
        more = tl.load(splits_of_level + 2 * level + 1)
        if more > 0:
            # In a CUDA graph, most programs have no split. They end without waiting for the
            # previous kernel. Programs with a split wait, so this kernel still ends after the
            # previous kernel.
            item = count + 0
            if split < count + more:
                item, first = schedule(
                    split, count, size, group_starts, key_starts, key_ends,
                    passes, ROWS, HAS_STARTS, TILE, ITEMS_AT_ONCE,
                )  # fmt: skip
    if item < count:
        start, end = keys_of_items(
            item, count, group_starts, key_starts, key_ends, passes, ROWS, HAS_STARTS
        )
        row, behind = item, item + 1
        if ROWS > 1:
            row = tl.load(group_starts + item // passes) + item % passes * ROWS
            behind = tl.minimum(tl.load(group_starts + item // passes + 1), row + ROWS)
        first_key = start
        if WINDOW is not None:
            first_key, start = keys_in_window(start, end, WINDOW, STEP)
        splits = split * 0 + 1
        if SPLIT:
            tiles = tl.cdiv(end - start, TILE)
            splits = tl.maximum(tl.cdiv(tiles, size), 1)
            keys = tl.cdiv(tiles, splits) * TILE
            start = start + (split - first) * keys
            end = tl.minimum(start + keys, end)

        wait_for_previous(DEPENDENT)
        member, column = tl.arange(0, M), tl.arange(0, D_PADDED)
        row_of = row + member // GROUP
        real = (member < GROUP * ROWS) & (row_of < behind)
        head = kv_head * GROUP + member % GROUP
        inside = real[:, None] & (column < D)[None, :]
        place = (row_of.to(tl.int64) * (KV_HEADS * GROUP) + head) * D
        place = place[:, None] + column[None, :]
        acc = tl.zeros([M, D_PADDED], dtype=tl.float32)
        m = tl.full([M], float("-inf"), dtype=tl.float32)
        total = tl.zeros([M], dtype=tl.float32)
        if start < end:
            if PAIRS:
                of_row = (row_of.to(tl.int64) * (KV_HEADS * GROUP) + head) * D
                queries = queries_of(q, of_row, real, D, WIDE)
                half = tl.zeros([M, WIDE], dtype=tl.float32)
                acc = (half, half)
            else:
                queries = tl.load(q + place, mask=inside, other=0.0)
            last_key = tl.zeros([M], dtype=tl.int32) + (end - 1)
            keys_of_head = kv + kv_head.to(tl.int64) * HEAD_STRIDE
            if PAIRS:
                keys_of_head = pair_pointer(keys_of_head)
            scales = kv
            if SCALED:
                scales = scales_of_head(kv, kv_head, KV_HEADS, B, D)
            table = block_tables + row.to(tl.int64) * table_stride
            if WINDOW is not None:
                from_key = tl.zeros([M], dtype=tl.int32) + first_key
                if start < first_key:
                    acc, m, total = attend_tile(
                        queries, acc, m, total, keys_of_head, scales, table, start, end, last_key,
                        log2_scale, BLOCKS, VALUES, B, WIDTH, WIDE, TILE, True,
                        SCALED, SOFTCAP, from_key, True, PAIRS,
                    )  # fmt: skip
                    start = tl.minimum(start + TILE, end)
            whole = start + (end - start) // TILE * TILE
            for tile in tl.range(start, whole, TILE):
                acc, m, total = attend_tile(
                    queries, acc, m, total, keys_of_head, scales, table, tile, end, last_key,
                    log2_scale, BLOCKS, VALUES, B, WIDTH, WIDE, TILE, False,
                    SCALED, SOFTCAP, last_key, False, PAIRS,
                )  # fmt: skip
            if whole < end:
                acc, m, total = attend_tile(
                    queries, acc, m, total, keys_of_head, scales, table, whole, end, last_key,
                    log2_scale, BLOCKS, VALUES, B, WIDTH, WIDE, TILE, True,
                    SCALED, SOFTCAP, last_key, False, PAIRS,
                )  # fmt: skip
            if PAIRS:
                acc = together(acc, queries[0].dtype)
        result = average(acc, total)
        if (ROWS == 1) and (SHARED == 0) and splits == 1:
            if sinks is not None:
                result = average_with_sink(acc, m, total, tl.load(sinks + head))
            tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
        else:
            partial, partial_lse, _, _ = partials
            slot = first_slot + split * ROWS + member // GROUP
            slot = slot.to(tl.int64) * (KV_HEADS * GROUP) + head
            tl.store(partial + slot[:, None] * D + column[None, :], result, mask=inside)
            tl.store(partial_lse + slot, m + tl.log2(tl.where(total == 0.0, 1.0, total)), mask=real)
        if ROWS > 1:
            if (split == first) and (kv_head == 0):
                # For each row, the location of its partial results: first slot, stride between
                # slots, number of slots.
                index = tl.arange(0, ROWS)
                _, _, spans, _ = partials
                into = spans + (row + index) * 4
                written = row + index < behind
                tl.store(into, first_slot + first * ROWS + index, mask=written)
                tl.store(into + 1, index * 0 + ROWS, mask=written)
                tl.store(into + 2, index * 0 + splits, mask=written)
        elif (SPLIT or SHARED > 0) and (SHARED > 0 or splits > 1):
            # A barrier, because other threads read the values that this thread has stored.
            tl.debug_barrier()
            arrived = splits - 1
            partial, partial_lse, spans, arrivals = partials
            if splits > 1:
                counter = arrivals + row * KV_HEADS + kv_head
                arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
                if arrived == splits - 1:
                    tl.store(counter, 0)
            if arrived == splits - 1:
                merge_row(
                    partial, partial_lse, spans, out, sinks, row, count, first_slot + first, splits,
                    kv_head, KV_HEADS, GROUP, MEMBERS, D, D_PADDED, SHARED, PARTS_AT_ONCE,
                )  # fmt: skip
