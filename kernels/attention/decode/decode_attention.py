"""The attention of rows with one new token: few queries, long contexts, limited by memory.

This is split-KV attention ("flash-decoding"). The keys of shared prefixes are read once for all
rows that share them. The work consists of items: a range of keys, and the decode rows that read it.
The keys of all items are divided into splits of several tiles. Their size is chosen once for each
step (`split_sizes`). A batch of rows with different lengths then uses the device as well as a batch
of equal lengths:

    lengths     ########################################   ####   ############   #
    splits       [    0    ][    1    ][    2    ][   3  ]  [4 ]   [ 5  ][ 6  ]   [7]

    grid (KV heads, splits) -> the output if a row has one split, else a partial output and its
    log-sum-exp, float32. The row's last split to finish merges them

A separate launch computes attention to shared keys, before the launch for the rows' own keys. When
the last split of a row's own keys ends, all partial outputs of the row are therefore written. A
split that has written its partial output increments a counter in `BatchLayout.arrivals`. The
counter shows whether the split is the last of its row.

The maximum number of splits depends only on the number of items. Each program finds the item of its
split from the lengths in device memory (`attend_split`). The launch can therefore be captured in a
CUDA graph. For a row with context length 0, the output is 0.

With an attention window, a row reads only the keys of the window, and rows do not share reads. All
rows are then divided into the same number of splits (`split_window`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention.attention_tile import LOG2_E
from kernels.attention.batch_layout import BatchLayout, SharedPrefix
from kernels.attention.decode.attend_split import attend_split
from kernels.attention.decode.split_sizes import WindowSplits, most_window_tiles, split_window
from kernels.attention.kv.fp8_kv import is_fp8
from kernels.attention.kv.fp8_pairs import pairs_of
from kernels.attention.tuning import (
    DecodeTuning,
    decode_tuning,
    rows_together,
    shared_tuning,
    window_tuning,
)
from kernels.attention.variant import AttentionVariant
from kernels.launch.dependent_launch import dependent_launch
from kernels.launch.rounding import next_power_of_2


@dataclass(frozen=True, slots=True)
class _Items:
    """The items of one launch. Item i is run i % passes (`rows` rows) of group i // passes."""

    group_starts: Tensor
    key_starts: Tensor | None
    key_ends: Tensor
    count: int
    passes: int
    rows: int
    tuning: DecodeTuning

    @property
    def constants(self) -> dict[str, int | bool]:
        has_starts = self.key_starts is not None
        return {"ROWS": self.rows, "HAS_STARTS": has_starts, "TILE": self.tuning.tile}

    def tensors(self, layout: BatchLayout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the kernel's tensors. For a tensor that it does not read, return any tensor."""
        ends = self.key_ends
        starts = ends if self.key_starts is None else self.key_starts
        return self.group_starts, starts, ends, ends if layout.splits is None else layout.splits

    def target(self, kv_heads: int, longest: int) -> int:
        """Return the maximum number of splits, not counting the first split of each item.

        Items have up to `longest` keys.
        """
        longest_cut = longest // self.tuning.least_keys
        return max(min(self.tuning.most_splits(kv_heads), self.count * longest_cut), 1)


def launch(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    variant: AttentionVariant,
    sinks: Tensor | None,
    out: Tensor,
) -> None:
    """Compute attention of the leading `layout.num_decodes` rows of q (T, Hq, D) into `out`.

    `kv` (N, 2, Hkv, B, D) is one layer of the pool, of q's dtype or fp8. `out` has the shape and
    dtype of q, and only these rows of it are written. `sinks` is (Hq,) or None.
    """
    rows = layout.num_decodes
    if not rows:
        return
    how = _How(variant, sinks)
    if variant.window is not None:
        _launch_window(q, kv, layout, how, variant.window, out)
        return
    parts = launch_parts(q, kv, layout)
    is_cut = layout.splits is not None and layout.max_context_len > parts[-1].tuning.least_keys
    if len(parts) == 1 and not is_cut:
        _attend(q, kv, layout, how, parts[0], _Output(out, out, out, out, out, 0, 0))
        return
    longest = layout.max_context_len
    targets = [part.target(kv.shape[2], longest) if is_cut else 0 for part in parts]
    # A split writes one partial output per row.
    slots = [(n + part.count) * part.rows for n, part in zip(targets, parts, strict=True)]
    last = len(parts) - 1
    memory = _memory(q, kv, layout, sum(slots), last * rows)
    for index, part in enumerate(parts):
        room = _Output(out, *memory, sum(slots[:index]), targets[index])
        _attend(q, kv, layout, how, part, room, index, last if index == last else 0)


def _launch_window(
    q: Tensor, kv: Tensor, layout: BatchLayout, how: _How, window: int, out: Tensor
) -> None:
    """Launch the kernel for attention with a window.

    There is only one launch, because the number of splits depends only on the window.
    """
    rows, (kv_heads, block_size) = layout.num_decodes, kv.shape[2:4]
    tuning = window_tuning(q.shape[2], kv.dtype)
    part = _Items(layout.context_lens, None, layout.context_lens, rows, 1, 1, tuning)
    most = most_window_tiles(window, block_size, tuning)
    if most * tuning.tile < 2 * tuning.least_keys:
        _attend(q, kv, layout, how, part, _Output(out, out, out, out, out, 0, 0))
        return
    most = max(min(most, -(-layout.max_context_len // tuning.tile)), 1)
    cut = split_window(most, rows * kv_heads, tuning)
    memory = _memory(q, kv, layout, rows * cut.splits, 0)
    room = _Output(out, *memory, 0, rows * (cut.splits - 1))
    _attend(q, kv, layout, how, part, room, window=cut)


def _memory(
    q: Tensor, kv: Tensor, layout: BatchLayout, slots: int, spans: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate `slots` partial outputs, and a table with the locations of those of `spans` rows."""
    heads, head_dim = q.shape[1:]
    arrivals = layout.arrivals
    if arrivals is None:
        counters = layout.num_decodes * kv.shape[2]
        arrivals = torch.zeros(counters, dtype=torch.int32, device=q.device)
    partial = torch.empty((slots, heads, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((slots, heads), dtype=torch.float32, device=q.device)
    return partial, lse, torch.empty((spans, 4), dtype=torch.int32, device=q.device), arrivals


@dataclass(frozen=True, slots=True)
class _How:
    variant: AttentionVariant
    sinks: Tensor | None


@dataclass(frozen=True, slots=True)
class _Output:
    """The outputs of a launch: `out` for rows with one split, partial outputs for other rows.

    Partial outputs begin at `first_slot`. If `target` is 0, no item is split, and only `out` is
    written.
    """

    out: Tensor
    partial: Tensor
    lse: Tensor
    spans: Tensor
    arrivals: Tensor
    first_slot: int
    target: int


def launch_parts(q: Tensor, kv: Tensor, layout: BatchLayout) -> list[_Items]:
    """Return the items of each launch: shared keys, if any, then the rows' own keys."""
    shared, contexts = layout.shared, layout.context_lens
    starts = shared.own_starts if shared else None
    tuning = decode_tuning(q.shape[2], kv.dtype)
    own = _Items(contexts, starts, contexts, layout.num_decodes, 1, 1, tuning)
    return [_shared_items(shared, q, kv), own] if shared else [own]


def _shared_items(shared: SharedPrefix, q: Tensor, kv: Tensor) -> _Items:
    most = rows_together(q.shape[1] // kv.shape[2])
    rows = min(max(next_power_of_2(shared.max_group_rows), 2), most)
    passes = -(-shared.max_group_rows // rows)
    count = shared.key_ends.shape[0] * passes
    tuning = shared_tuning(q.shape[2], kv.dtype)
    return _Items(shared.group_starts, None, shared.key_ends, count, passes, rows, tuning)


def _attend(
    q: Tensor,
    kv: Tensor,
    layout: BatchLayout,
    how: _How,
    part: _Items,
    room: _Output,
    level: int = 0,
    merged: int = 0,
    window: WindowSplits | None = None,
) -> None:
    """Launch the kernel for the items `part`, the part number `level` of the work.

    If `merged` is 1, also merge the partial outputs of shared keys. `window` has the splits of rows
    if there is an attention window.
    """
    grid = (kv.shape[2], part.count + room.target)
    tables = layout.block_tables
    attend_split[grid](
        q,
        kv,
        tables,
        tables.stride(0),
        part.tensors(layout),
        part.count,
        part.passes,
        level,
        room.out,
        (room.partial, room.lse, room.spans, room.arrivals),
        room.first_slot,
        how.sinks,
        how.variant.scale * LOG2_E,
        None if window is None else window.splits,
        None if window is None else window.tiles,
        **_shape(q, kv),
        **part.constants,
        SPLIT=window is not None or room.target > 0,
        SHARED=merged,
        WINDOW=how.variant.window,
        SOFTCAP=how.variant.softcap,
        num_warps=part.tuning.warps,
        num_stages=part.tuning.stages,
        **dependent_launch(q.device),
    )


def _shape(q: Tensor, kv: Tensor) -> dict[str, int | bool]:
    """Return the compile-time constants for queries (T, Hq, D) and one layer of the pool."""
    kv_heads, block_size = kv.shape[2:4]
    return {
        "BLOCK_STRIDE": kv.stride(0),
        "VALUE_STRIDE": kv.stride(1),
        "HEAD_STRIDE": kv.stride(2),
        "KV_HEADS": kv_heads,
        "GROUP": q.shape[1] // kv_heads,
        "B": block_size,
        "D": q.shape[2],
        "SCALED": is_fp8(kv),
        "PAIRS": pairs_of(q, kv),
    }
