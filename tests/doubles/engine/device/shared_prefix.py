"""Decode batches whose rows share prefixes, with their block tables and splits.

Knows only layouts; `benchmarks.engine.kernels` times them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kernels.attention.batch_layout import BatchLayout, SharedPrefix
from kernels.attention.decode.split_sizes import split_sizes
from kernels.attention.tuning import rows_together


@dataclass(frozen=True, slots=True)
class Forest:
    """Equal groups of rows: numbers of tokens shared by all rows, by a group, and by none."""

    groups: int
    rows_each: int
    of_all: int
    of_group: int
    own: int

    @property
    def shared(self) -> int:
        """Number of tokens that the rows of a group have in common."""
        return self.of_all + self.of_group

    def lengths(self) -> list[int]:
        """The context of each row."""
        return [self.shared + self.own] * (self.groups * self.rows_each)


def make_shared(forest: Forest, tables: Tensor, block_size: int) -> tuple[Tensor, SharedPrefix]:
    """Return block tables with shared leading blocks, and a plan to read each of these once."""

    def numbers(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=tables.device)

    shared = tables.clone()
    leaders = torch.arange(tables.shape[0], device=tables.device)
    leaders = leaders // forest.rows_each * forest.rows_each
    blocks = forest.shared // block_size
    shared[:, :blocks] = tables[leaders, :blocks]
    shared[:, : forest.of_all // block_size] = tables[:1, : forest.of_all // block_size]
    return shared, SharedPrefix(
        group_starts=numbers([forest.rows_each * group for group in range(forest.groups + 1)]),
        key_ends=numbers([forest.shared] * forest.groups),
        own_starts=torch.full_like(tables[:, 0], forest.shared),
        max_group_rows=forest.rows_each,
    )


def with_units(layout: BatchLayout, kv: Tensor, num_q_heads: int) -> BatchLayout:
    """Return the layout with work units for its lengths, which are copied back from the device."""
    own = layout.context_lens[: layout.num_decodes].cpu().numpy()
    together, shared = layout.shared, None
    if together is not None:
        own = own - together.own_starts.cpu().numpy()
        passes = -(-together.max_group_rows // rows_together(num_q_heads // kv.shape[-3]))
        shared = np.repeat(together.key_ends.cpu().numpy(), passes)
    splits = torch.from_numpy(split_sizes(kv).cut(own, shared))
    return replace(layout, splits=splits.to(kv.device))
