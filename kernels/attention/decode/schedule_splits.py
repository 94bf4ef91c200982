"""The assignment of keys to programs, computed from lengths in device memory.

Item i is run number i % passes of group i // passes. A run consists of ROWS rows of the group,
which read the group's keys. With ROWS 1, a group is a single row. The keys of all items are divided
into splits of several tiles. The host has chosen their size (`split_sizes`). Every item has at
least one split, because a split writes its output. With an attention window, all rows have the same
number of splits, and some splits have no work. This module has only device code.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keys_of_items(
    item: tl.tensor,
    items: tl.tensor,
    group_starts: tl.tensor,
    key_starts: tl.tensor,
    key_ends: tl.tensor,
    passes: tl.tensor,
    ROWS: tl.constexpr,
    HAS_STARTS: tl.constexpr,
) -> tl.tensor:
    """Load the first key and the end of the keys of `item`. Items that do not exist are empty."""
    real = item < items
    group = item // passes
    end = tl.load(key_ends + group, mask=real, other=0)
    start = end * 0
    if HAS_STARTS:
        start = tl.load(key_starts + group, mask=real, other=0)
    if ROWS > 1:
        first = tl.load(group_starts + group, mask=real, other=0) + item % passes * ROWS
        behind = tl.load(group_starts + group + 1, mask=real, other=0)
        end = tl.where(first < behind, end, start)
    return start, tl.maximum(start, end)


@triton.jit
def schedule(
    split: tl.tensor,
    items: tl.tensor,
    size: tl.tensor,
    group_starts: tl.tensor,
    key_starts: tl.tensor,
    key_ends: tl.tensor,
    passes: tl.tensor,
    ROWS: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    TILE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> tl.tensor:
    """Find the item to which `split` belongs, and the first split of that item.

    Splits have `size` tiles. A split without work gets the item number `items`.
    """
    lane = tl.arange(0, AT_ONCE)
    behind = split * 0  # number of splits of the items before `base`
    item, first = behind, behind
    for base in tl.range(0, items, AT_ONCE):
        start, end = keys_of_items(
            base + lane, items, group_starts, key_starts, key_ends, passes, ROWS, HAS_STARTS
        )
        splits = tl.maximum(tl.cdiv(tl.cdiv(end - start, TILE), size), 1)
        splits = tl.where(base + lane < items, splits, 0)
        ends = behind + tl.cumsum(splits, axis=0)
        passed = (ends <= split) & (base + lane < items)
        item += tl.sum(passed.to(tl.int32), axis=0)
        first = tl.maximum(first, tl.max(tl.where(passed, ends, 0), axis=0))
        behind += tl.sum(splits, axis=0)
    return item, first


@triton.jit
def keys_in_window(
    start: tl.tensor, end: tl.tensor, WINDOW: tl.constexpr, STEP: tl.constexpr
) -> tl.tensor:
    """Return the first of the last WINDOW keys in [start, end): exact, and rounded down to STEP."""
    first_key = tl.maximum(end - WINDOW, start)
    return first_key, first_key // STEP * STEP


@triton.jit
def schedule_window(
    split: tl.tensor,
    items: tl.tensor,
    size: tl.tensor,
    splits_each: tl.tensor,
    key_ends: tl.tensor,
    WINDOW: tl.constexpr,
    STEP: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Compute `schedule` if every item is a row with at most `splits_each` splits."""
    item = split // splits_each
    first = item * splits_each
    end = tl.load(key_ends + item)
    _, start = keys_in_window(end * 0, end, WINDOW, STEP)
    splits = tl.maximum(tl.cdiv(tl.cdiv(end - start, TILE), size), 1)
    return tl.where(split - first < splits, item, items), first
