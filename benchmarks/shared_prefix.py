"""Decode batches whose rows share prefixes, and their block tables.

Knows only layouts; `benchmarks.attention` times them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.batch_layout import SharedLevel, SharedPrefix


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


def _level(groups: int, rows_each: int, start: int, end: int, tables: Tensor) -> SharedLevel:
    def numbers(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=tables.device)

    return SharedLevel(
        group_starts=numbers([rows_each * group for group in range(groups + 1)]),
        key_starts=numbers([start] * groups),
        key_ends=numbers([end] * groups),
        max_group_rows=rows_each,
    )
