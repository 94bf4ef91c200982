"""Cuts the contexts of decode rows into items of work of about one size.

    row      |        0        |  1  |            2             |
    keys     | 2048 | 2048 | 9 | 700 | 2048 | 2048 | 2048 | 77  |
    item     |  0      1     2 |  3  |  4      5      6      7  |

A batch of mixed lengths is cut as evenly as one of equal lengths, so it fills the device as
well. How many keys an item takes follows from the sum of all contexts.

Knows: lengths, on the host. Does not know: blocks, heads or devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

TARGET_ITEMS = 128  # times the KV heads, 8 as a rule: several programs for each multiprocessor
MIN_KEYS = 256  # an item of less is not worth combining
KEY_STEP = 64  # whole tiles


@dataclass(frozen=True, slots=True)
class HostItems:
    """Of each item its `rows` and its first key in `starts` (I,); `row_items` (R + 1,): where
    each row's items begin, the last is I; `keys` (1,): how many keys an item takes at most."""

    rows: Ints
    starts: Ints
    row_items: Ints
    keys: Ints


def cut(contexts: npt.NDArray[np.integer]) -> HostItems:
    """The items of decode rows with these contexts, (R,)."""
    share = -(-int(contexts.sum()) // TARGET_ITEMS)
    keys = max(-(-share // KEY_STEP) * KEY_STEP, MIN_KEYS)
    counts = -(-contexts // keys)
    row_items = np.zeros(len(contexts) + 1, np.int32)
    np.cumsum(counts, out=row_items[1:])
    rows = np.repeat(np.arange(len(contexts), dtype=np.int32), counts)
    starts = (np.arange(len(rows), dtype=np.int32) - row_items[rows]) * np.int32(keys)
    return HostItems(rows, starts, row_items, np.array([keys], np.int32))


def most_items(num_rows: int) -> int:
    """No batch of so many rows is cut into more."""
    return num_rows + TARGET_ITEMS
