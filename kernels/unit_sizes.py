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
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.batch_layout import BatchLayout
from kernels.tuning import DecodeTuning, decode_tuning, rows_together, shared_tuning

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating]

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


def with_units(layout: BatchLayout, kv: Tensor, num_q_heads: int) -> BatchLayout:
    """The layout with units for its lengths, which are fetched from the device: not for a step."""
    own = layout.context_lens[: layout.num_decodes].cpu().numpy()
    shared = []
    if layout.shared is not None:
        own = own - layout.shared.own_starts.cpu().numpy()
        for level in layout.shared.levels:
            passes = -(-level.max_group_rows // rows_together(num_q_heads // kv.shape[-3]))
            shared.append(np.repeat((level.key_ends - level.key_starts).cpu().numpy(), passes))
    units = torch.from_numpy(unit_sizes(kv).cut(own, shared))
    return replace(layout, units=units.to(kv.device))


def best_cut(lengths: Ints, tuning: DecodeTuning, kv_heads: int) -> tuple[int, int]:
    """(keys a unit, units beyond one an item) with which items of `lengths` (I,) take least time.

    The keys are a multiple of `tuning.tile`; there are at most `tuning.most_units` such units.
    """
    tiles = -(-lengths[lengths > 0] // tuning.tile)
    work, longest = int(tiles.sum()), int(tiles.max(initial=0))
    least = max(-(-work // tuning.most_units(kv_heads)), tuning.least_keys // tuning.tile)
    if longest <= least:
        return least * tuning.tile, 0
    sizes = np.unique(-(-longest // np.arange(1, longest // least + 1)))
    units = np.ceil(tiles / sizes[:, None]).sum(axis=1)  # faster than whole numbers, and exact
    begin = tuning.begin_keys / tuning.tile
    waves = units * kv_heads / tuning.at_once
    time = _time(work / units + begin, sizes + begin, waves, tuning.alone)
    best = int(time.argmin())
    return int(sizes[best]) * tuning.tile, int(units[best]) - len(tiles)


def _time(mean: Floats, most: Floats, waves: Floats, alone: float) -> Floats:
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
