"""Decode batches whose rows share prefixes, their block tables, and how their keys are cut.

Knows only layouts; `benchmarks.attention` times them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kernels.batch_layout import BatchLayout, SharedLevel, SharedPrefix
from kernels.tuning import rows_together
from kernels.unit_sizes import unit_sizes


@dataclass(frozen=True, slots=True)
class Forest:
    """Groups of equal size: tokens that all rows share, that a group shares, of a row alone."""

    groups: int
    rows_each: int
    of_all: int
    of_group: int
    own: int


GROUPS_OF_FOUR = Forest(groups=16, rows_each=4, of_all=1_024, of_group=3_072, own=256)


def forest_lengths(forest: Forest) -> list[int]:
    """The context of each row."""
    rows = forest.groups * forest.rows_each
    return [forest.of_all + forest.of_group + forest.own] * rows


def make_shared(
    forest: Forest, levels: int, tables: Tensor, block_size: int
) -> tuple[Tensor, SharedPrefix | None]:
    """(tables whose leading blocks are shared, the plan that reads them in 0, 1 or 2 levels)."""
    common, grouped = forest.of_all, forest.of_all + forest.of_group
    shared = tables.clone()
    leaders = torch.arange(tables.shape[0], device=tables.device)
    leaders = leaders // forest.rows_each * forest.rows_each
    shared[:, : grouped // block_size] = tables[leaders, : grouped // block_size]
    shared[:, : common // block_size] = tables[:1, : common // block_size]
    if not levels:
        return shared, None
    per_group = _level(forest.groups, forest.rows_each, common * (levels - 1), grouped, tables)
    of_all = _level(1, forest.groups * forest.rows_each, 0, common, tables)
    plan = (of_all, per_group) if levels == 2 else (per_group,)
    starts = torch.full_like(tables[:, 0], grouped)
    return shared, SharedPrefix(levels=plan, own_starts=starts)


def with_units(layout: BatchLayout, kv: Tensor, num_q_heads: int) -> BatchLayout:
    """The layout with units for its lengths, which are fetched from the device, as no step does."""
    own = layout.context_lens[: layout.num_decodes].cpu().numpy()
    shared = []
    if layout.shared is not None:
        own = own - layout.shared.own_starts.cpu().numpy()
        for level in layout.shared.levels:
            passes = -(-level.max_group_rows // rows_together(num_q_heads // kv.shape[-3]))
            shared.append(np.repeat((level.key_ends - level.key_starts).cpu().numpy(), passes))
    units = torch.from_numpy(unit_sizes(kv).cut(own, shared))
    return replace(layout, units=units.to(kv.device))


def _level(groups: int, rows_each: int, start: int, end: int, tables: Tensor) -> SharedLevel:
    def numbers(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=tables.device)

    return SharedLevel(
        group_starts=numbers([rows_each * group for group in range(groups + 1)]),
        key_starts=numbers([start] * groups),
        key_ends=numbers([end] * groups),
        max_group_rows=rows_each,
    )
