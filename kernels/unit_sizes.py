"""How many keys a unit of decode attention holds, chosen on the host once a step.

Each KV head's keys are cut into units (`decode_attention`), of which so many run at once. Units of
one size run in waves, of which the last may be a part:

    whole     [  unit  ][  unit  ]           1.5 waves: with half of the units the memory is not
              [  unit  ]                     kept as busy, though each of them runs faster
    in two    [ unit ][ unit ][ unit ]       3 waves, but each unit takes time to begin

Units of different sizes end one after the other; then it does not matter how full the last wave is,
only how long the last units run alone.

Knows: lengths, and how time follows from units (measured, docs/performance.md). Does not know: rows
or the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kernels.tuning import DecodeTuning, decode_tuning, shared_tuning

Ints = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.number]

_EVEN = 1.25  # times the mean: units that are not longer than that end together
_TAIL = 0.45  # of the longest unit's time is lost behind units that do not end together


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """The choice for one pool."""

    own: DecodeTuning
    shared: DecodeTuning
    kv_heads: int

    def cut(self, own: Ints, shared: Sequence[Ints] = ()) -> Ints:
        """`BatchLayout.units` (levels + 1, 2) for items of these lengths (I,), in tokens.

        `own` are what rows read alone, `shared` level by level what their groups read.
        """
        cuts = [best_cut(lengths, self.shared, self.kv_heads) for lengths in shared]
        return np.array([*cuts, best_cut(own, self.own, self.kv_heads)], np.int32)


def unit_sizes(pool: Tensor) -> UnitSizes:
    """For a pool (`kv_pool_shape`), or one layer of it."""
    kv_heads, _, head_dim = pool.shape[-3:]
    own, shared = decode_tuning(head_dim, pool.dtype), shared_tuning(head_dim, pool.dtype)
    return UnitSizes(own, shared, kv_heads)


def best_cut(lengths: Ints, tuning: DecodeTuning, kv_heads: int) -> tuple[int, int]:
    """(keys a unit, units beyond one an item) with which items of `lengths` (I,) take least time.

    The keys are a multiple of `tuning.tile`; there are at most `tuning.most_units` such units.
    """
    tiles = _tiles(lengths, tuning)
    sizes, units = _cuts(tiles, tuning, kv_heads)
    best = 0
    if len(sizes) > 1:
        begin = tuning.begin_keys / tuning.tile
        waves = units * kv_heads / tuning.at_once
        time = _time(tiles.sum() / units + begin, sizes + begin, waves, tuning.alone)
        best = int(time.argmin())
    return int(sizes[best]) * tuning.tile, int(units[best]) - len(tiles)


def possible_cuts(lengths: Ints, tuning: DecodeTuning, kv_heads: int) -> list[tuple[int, int]]:
    """What `best_cut` chooses from: all that a launch has room for, the finest first."""
    tiles = _tiles(lengths, tuning)
    sizes, units = _cuts(tiles, tuning, kv_heads)
    more = units - len(tiles)
    return [(int(size) * tuning.tile, int(m)) for size, m in zip(sizes, more, strict=True)]


def _tiles(lengths: Ints, tuning: DecodeTuning) -> Ints:
    """Of each item that has any."""
    tiles: Ints = -(-lengths[lengths > 0] // tuning.tile)
    return tiles


def _cuts(tiles: Ints, tuning: DecodeTuning, kv_heads: int) -> tuple[Numbers, Numbers]:
    """Tiles of a unit and number of units (C,), if the longest item has 1, 2, 3... of one size."""
    fewest = -(-int(tiles.sum()) // tuning.most_units(kv_heads))
    least, longest = max(fewest, tuning.least_keys // tuning.tile), int(tiles.max(initial=0))
    if longest <= least:
        return np.array([least]), np.array([len(tiles)])
    sizes = np.unique(-(-longest // np.arange(1, longest // least + 1)))
    units = np.ceil(tiles / sizes[:, None]).sum(axis=1)  # faster than whole numbers, and exact
    return sizes, units


def _time(mean: Numbers, most: Numbers, waves: Numbers, alone: float) -> Numbers:
    """How long each cut takes (C,), in the time of a tile when the device is full.

    `mean`, `most` (C,): tiles of a unit, with its beginning; `waves` (C,) of units;
    `alone`: as in `DecodeTuning`.
    """
    rest = waves % 1
    in_waves = most * (waves - rest + np.where(rest > 0, alone + (1 - alone) * rest, 0))
    in_any_order = mean * waves + most * _TAIL
    in_one = most * alone + mean * (1 - alone) * waves
    is_even = most <= _EVEN * mean
    return np.where(waves <= 1, in_one, np.where(is_even, in_waves, in_any_order))
