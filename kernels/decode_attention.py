"""Attention of rows with one new token: few queries and a long context, so bound by memory.

This is split-KV attention ("flash-decoding"), with the keys of shared prefixes read once for all
rows that share them. Work comes in items: a range of keys, and the decode rows that read it. A
row's own keys are an item of one row; the keys that several rows share (`SharedPrefix`) are an item
of all of them. The keys of all items, in tiles, are dealt into units of about equal size:

    lengths     ########################################   ####   ############   #
    units       [    0    ][    1    ][    2    ][   3  ]  [4 ]   [ 5  ][ 6  ]   [7]

    grid (KV heads, units) -> the output, where a row is one unit; else a partial output and its
    log-sum-exp, float32, which the row's last unit to finish merges

Shared keys are attended in a launch of their own, before the rows' own keys: so the last own unit
of a row finds all its parts written. Each unit counts itself in `BatchLayout.arrivals` when it has
written its part, and so knows whether it is the last.

How many units there may be follows from the number of items alone; which item a unit belongs
to is worked out by each program from the lengths in device memory. So the launch can be
captured in a CUDA graph, and a batch of mixed lengths fills the device as an even one does.
A row whose context is 0 gives 0.

Knows: decode rows, their groups and lengths. Does not know: rows with several new tokens
(`prefill_attention`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_tile import LOG2_E, attend_tile, average
from kernels.batch_layout import BatchLayout, SharedLevel
from kernels.deal_units import deal, keys_of_items
from kernels.early_start import early_start, start_early
from kernels.merge_attention import PARTS_AT_ONCE, merge_row
from kernels.tuning import DecodeTuning, decode_tuning, rows_together, shared_tuning

_ITEMS_AT_ONCE = 128  # lengths that a program reads in one go
_MIN_QUERIES = 16  # rows of the smallest operand that the matrix units take


@triton.jit(do_not_specialize=["table_stride", "items", "passes", "fine", "coarse", "first_slot"])
def _attend_kernel(
    q: tl.tensor,
    kv: tl.tensor,
    group_starts: tl.tensor,
    key_starts: tl.tensor,
    key_ends: tl.tensor,
    block_tables: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    partial_lse: tl.tensor,
    spans: tl.tensor,
    arrivals: tl.tensor,
    log2_scale: tl.tensor,
    items: tl.tensor,
    passes: tl.tensor,
    fine: tl.tensor,
    coarse: tl.tensor,
    first_slot: tl.tensor,
    table_stride: tl.tensor,
    head_stride: tl.tensor,
    BLOCK_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    B: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    M: tl.constexpr,
    TILE: tl.constexpr,
    USUAL_TILES: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SPLIT: tl.constexpr,
    SHARED: tl.constexpr,
    MEMBERS: tl.constexpr,
    PARTS_AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    start_early(EARLY)
    kv_head, unit = tl.program_id(0), tl.program_id(1)
    item, first, size = unit, unit, 0
    if SPLIT:
        item, first, size = deal(
            unit, items, fine, coarse, group_starts, key_starts, key_ends,
            passes, ROWS, HAS_STARTS, TILE, USUAL_TILES, LEAST_TILES, AT_ONCE,
        )  # fmt: skip
    if item < items:
        start, end = keys_of_items(
            item, items, group_starts, key_starts, key_ends, passes, ROWS, HAS_STARTS
        )
        row, behind = item, item + 1
        if ROWS > 1:
            row = tl.load(group_starts + item // passes) + item % passes * ROWS
            behind = tl.minimum(tl.load(group_starts + item // passes + 1), row + ROWS)
        units = unit * 0 + 1
        if SPLIT:
            tiles = tl.cdiv(end - start, TILE)
            units = tl.maximum(tl.cdiv(tiles, size), 1)
            keys = tl.cdiv(tiles, units) * TILE
            start = start + (unit - first) * keys
            end = tl.minimum(start + keys, end)

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
            queries = tl.load(q + place, mask=inside, other=0.0)
            last_key = tl.zeros([M], dtype=tl.int32) + (end - 1)
            keys_of_head = kv + kv_head.to(tl.int64) * head_stride
            table = block_tables + row.to(tl.int64) * table_stride
            whole = start + (end - start) // TILE * TILE
            for tile in tl.range(start, whole, TILE):
                acc, m, total = attend_tile(
                    queries, acc, m, total, keys_of_head, table, tile, end, last_key, log2_scale,
                    BLOCK_STRIDE, VALUE_STRIDE, B, D, D_PADDED, TILE, False,
                )  # fmt: skip
            if whole < end:
                acc, m, total = attend_tile(
                    queries, acc, m, total, keys_of_head, table, whole, end, last_key, log2_scale,
                    BLOCK_STRIDE, VALUE_STRIDE, B, D, D_PADDED, TILE, True,
                )  # fmt: skip
        result = average(acc, total)
        if (ROWS == 1) and (SHARED == 0) and units == 1:
            tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
        else:
            slot = first_slot + unit * ROWS + member // GROUP
            slot = slot.to(tl.int64) * (KV_HEADS * GROUP) + head
            tl.store(partial + slot[:, None] * D + column[None, :], result, mask=inside)
            tl.store(partial_lse + slot, m + tl.log2(tl.where(total == 0.0, 1.0, total)), mask=real)
        if ROWS > 1:
            if (unit == first) and (kv_head == 0):
                # Where each row's parts lie: first slot, slots from one to the next, how many.
                index = tl.arange(0, ROWS)
                into = spans + (row + index) * 4
                written = row + index < behind
                tl.store(into, first_slot + first * ROWS + index, mask=written)
                tl.store(into + 1, index * 0 + ROWS, mask=written)
                tl.store(into + 2, index * 0 + units, mask=written)
        elif (SPLIT or SHARED > 0) and (SHARED > 0 or units > 1):
            tl.debug_barrier()  # other threads read what this one has stored
            arrived = units - 1
            if units > 1:
                counter = arrivals + row * KV_HEADS + kv_head
                arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
                if arrived == units - 1:
                    tl.store(counter, 0)
            if arrived == units - 1:
                merge_row(
                    partial, partial_lse, spans, out, row, items, first_slot + first, units,
                    kv_head, KV_HEADS, GROUP, MEMBERS, D, D_PADDED, SHARED, PARTS_AT_ONCE,
                )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Items:
    """The items of one launch: item i is the (i % passes)-th `rows` rows of group i // passes."""

    group_starts: Tensor
    key_starts: Tensor | None
    key_ends: Tensor
    count: int
    passes: int
    rows: int
    tuning: DecodeTuning

    def target(self, kv_heads: int, longest: int) -> int:
        """A bound on the units beyond one an item, if no item has more than `longest` keys."""
        tuning = self.tuning
        dealt = min(tuning.fine // kv_heads, self.count * (longest // tuning.usual_keys))
        in_few = min(tuning.coarse // kv_heads, self.count * (longest // tuning.least_keys))
        return max(dealt, in_few, 1)


def launch(q: Tensor, kv: Tensor, layout: BatchLayout, scale: float, out: Tensor) -> None:
    """Attend the leading `layout.num_decodes` rows of q (T, Hq, D); write their part of `out`.

    `kv` (N, 2, Hkv, B, D) is one layer of the pool; `out` is like q.
    """
    rows = layout.num_decodes
    if not rows:
        return
    parts = _parts(q, kv, layout)
    if len(parts) == 1 and layout.max_context_len <= parts[0].tuning.least_keys:
        _attend(q, kv, layout, scale, parts[0], _Room(out, out, out, out, out, 0, 0))
        return
    targets = [part.target(kv.shape[2], layout.max_context_len) for part in parts]
    # A partial row for each row of each unit.
    slots = [(n + part.count) * part.rows for n, part in zip(targets, parts, strict=True)]
    levels = len(parts) - 1
    heads, head_dim = q.shape[1:]
    partial = torch.empty((sum(slots), heads, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((sum(slots), heads), dtype=torch.float32, device=q.device)
    spans = torch.empty((levels, rows, 4), dtype=torch.int32, device=q.device)
    arrivals = layout.arrivals
    if arrivals is None:
        arrivals = torch.zeros(rows * kv.shape[2], dtype=torch.int32, device=q.device)
    for index, part in enumerate(parts):
        written = spans[index] if index < levels else spans
        room = _Room(out, partial, lse, written, arrivals, sum(slots[:index]), targets[index])
        _attend(q, kv, layout, scale, part, room, levels if index == levels else 0)


@dataclass(frozen=True, slots=True)
class _Room:
    """Where a launch writes: outputs of rows of one unit to `out`, parts from `first_slot` on.

    `target` 0: no item is split, and only `out` is written.
    """

    out: Tensor
    partial: Tensor
    lse: Tensor
    spans: Tensor
    arrivals: Tensor
    first_slot: int
    target: int


def _parts(q: Tensor, kv: Tensor, layout: BatchLayout) -> list[_Items]:
    """The items of each launch: the keys that rows share, level by level, then the rows' own."""
    shared, contexts = layout.shared, layout.context_lens
    starts = shared.own_starts if shared else None
    tuning = decode_tuning(q.shape[2], q.dtype)
    own = _Items(contexts, starts, contexts, layout.num_decodes, 1, 1, tuning)
    return [_shared_items(level, q, kv) for level in (shared.levels if shared else ())] + [own]


def _shared_items(level: SharedLevel, q: Tensor, kv: Tensor) -> _Items:
    most = rows_together(q.shape[1] // kv.shape[2])
    rows = min(max(triton.next_power_of_2(level.max_group_rows), 2), most)
    passes = -(-level.max_group_rows // rows)
    count = level.key_ends.shape[0] * passes
    tuning = shared_tuning(q.shape[2], q.dtype)
    return _Items(level.group_starts, level.key_starts, level.key_ends, count, passes, rows, tuning)


def _attend(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    scale: float,
    part: _Items,
    room: _Room,
    levels: int = 0,
) -> None:
    """Launch one part; `levels`: of shared keys, whose partial outputs are to be merged in."""
    heads, head_dim = q.shape[1:]
    kv_heads, block_size = kv.shape[2:4]
    group, tuning = heads // kv_heads, part.tuning
    _attend_kernel[(kv_heads, part.count + room.target)](
        q,
        kv,
        part.group_starts,
        part.key_ends if part.key_starts is None else part.key_starts,
        part.key_ends,
        layout.block_tables,
        room.out,
        room.partial,
        room.lse,
        room.spans,
        room.arrivals,
        scale * LOG2_E,
        part.count,
        part.passes,
        max(tuning.fine // kv_heads, 1),
        max(tuning.coarse // kv_heads, 1),
        room.first_slot,
        layout.block_tables.stride(0),
        kv.stride(2),
        BLOCK_STRIDE=kv.stride(0),
        VALUE_STRIDE=kv.stride(1),
        KV_HEADS=kv_heads,
        GROUP=group,
        ROWS=part.rows,
        HAS_STARTS=part.key_starts is not None,
        B=block_size,
        D=head_dim,
        D_PADDED=triton.next_power_of_2(head_dim),
        M=max(triton.next_power_of_2(group * part.rows), _MIN_QUERIES),
        TILE=tuning.tile,
        USUAL_TILES=tuning.usual_keys // tuning.tile,
        LEAST_TILES=tuning.least_keys // tuning.tile,
        AT_ONCE=_ITEMS_AT_ONCE,
        SPLIT=room.target > 0,
        SHARED=levels,
        MEMBERS=triton.next_power_of_2(group),
        PARTS_AT_ONCE=PARTS_AT_ONCE,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **early_start(q.device),
    )
