"""The choice, on the host and for each step, of the number of keys in a split of decode attention.

The keys of each KV head are divided into splits (`decode_attention`). A fixed number of splits run
at the same time. Splits of the same size run in waves, and the last wave may be partial:

    long      [  split  ][  split  ]            1.5 waves: in the last wave each split runs faster,
              [  split  ]                       but half of the splits do not keep the memory busy
    halved    [ split ][ split ][ split ]       3 waves, but each split takes time to begin

Splits of different sizes end one after another. Then only the time during which the last splits run
alone matters. The constants were measured (docs/lab/performance-log.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kernels.attention.tuning import DecodeTuning, decode_tuning, shared_tuning
from kernels.launch.rounding import cdiv

Ints = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.number]

_EVEN = 1.25  # splits count as ending together if the longest is at most this multiple of the mean
_TAIL = 0.45  # share of the longest split's time that is lost if splits do not end together


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """The chooser of split sizes for one pool."""

    own: DecodeTuning
    shared: DecodeTuning
    kv_heads: int

    def cut(self, own: Ints, shared: Ints | None = None) -> Ints:
        """Choose `BatchLayout.splits` for items of these lengths in tokens.

        `own` has the number of keys that each row reads alone, and `shared` the number that each
        group reads together.
        """
        cuts = [] if shared is None else [best_split(shared, self.shared, self.kv_heads)]
        return np.array([*cuts, best_split(own, self.own, self.kv_heads)], np.int32)


def split_sizes(kv: Tensor) -> SplitSizes:
    """Make the `SplitSizes` for layers with the dtype and the last dimensions of `kv`.

    `kv` is (..., kv heads, block size, head dim).
    """
    kv_heads, _, head_dim = kv.shape[-3:]
    own, shared = decode_tuning(head_dim, kv.dtype), shared_tuning(head_dim, kv.dtype)
    return SplitSizes(own, shared, kv_heads)


def best_split(lengths: Ints, tuning: DecodeTuning, kv_heads: int) -> tuple[int, int]:
    """Find the fastest number of keys per split, for I items of `lengths` (I,).

    Return this number, a multiple of `tuning.tile`, and the number of splits beyond the first split
    of each item, at most `tuning.most_splits`.
    """
    tiles: Ints = -(-lengths[lengths > 0] // tuning.tile)
    sizes, splits = possible_splits(tiles, tuning, kv_heads)
    best = 0
    if len(sizes) > 1:
        begin = tuning.begin_keys / tuning.tile
        waves = splits * kv_heads / tuning.at_once
        time = _time(tiles.sum() / splits + begin, sizes + begin, waves, tuning.alone)
        best = int(time.argmin())
    return int(sizes[best]) * tuning.tile, int(splits[best]) - len(tiles)


def possible_splits(tiles: Ints, tuning: DecodeTuning, kv_heads: int) -> tuple[Numbers, Numbers]:
    """Return the candidates for `best_split`: C ways to divide items that fit into a launch.

    `tiles` (I,) has the tiles of each item. Return the tiles per split and the number of splits,
    (C,) each. Candidate i divides the longest item into i + 1 splits of the same size.
    """
    fewest = -(-int(tiles.sum()) // tuning.most_splits(kv_heads))
    least, longest = max(fewest, tuning.least_keys // tuning.tile), int(tiles.max(initial=0))
    if longest <= least:
        return np.array([least]), np.array([len(tiles)])
    sizes = np.unique(-(-longest // np.arange(1, longest // least + 1)))
    # Floats are faster than integers here, and exact.
    splits = np.ceil(tiles / sizes[:, None]).sum(axis=1)
    return sizes, splits


def _time(mean: Numbers, most: Numbers, waves: Numbers, alone: float) -> Numbers:
    """Estimate the times of the C candidates, in units of a tile's time on a fully used device.

    `mean` and `most` (C,) are the mean and the maximum tiles of a split, including its start-up
    time as tiles. `waves` (C,) are the numbers of waves. For `alone`, see `DecodeTuning`.
    """
    rest = waves % 1
    in_waves = most * (waves - rest + np.where(rest > 0, alone + (1 - alone) * rest, 0))
    in_any_order = mean * waves + most * _TAIL
    in_one = most * alone + mean * (1 - alone) * waves
    is_even = most <= _EVEN * mean
    return np.where(waves <= 1, in_one, np.where(is_even, in_waves, in_any_order))


@dataclass(frozen=True, slots=True)
class WindowSplits:
    """The maximum number of splits of a row, and the number of tiles in each split.

    Shorter rows have fewer splits.
    """

    splits: int
    tiles: int


def most_window_tiles(window: int, block_size: int, tuning: DecodeTuning) -> int:
    """Return the maximum number of tiles to which `window` successive keys can belong."""
    return cdiv(window + min(block_size, tuning.tile) - 1, tuning.tile)


def split_window(most_tiles: int, heads: int, tuning: DecodeTuning) -> WindowSplits:
    """Divide rows of up to `most_tiles` tiles, for `heads` KV heads, so that all splits run.

    With a window, rows have about the same length, so their lengths are not needed.
    """
    splits = min(tuning.at_once // heads, most_tiles * tuning.tile // tuning.least_keys)
    tiles = cdiv(most_tiles, max(splits, 1))
    return WindowSplits(cdiv(most_tiles, tiles), tiles)
