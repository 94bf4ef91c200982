"""An attention that computes by the reference, and checks that grouped rows share blocks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.attention import paged_attention
from kernels.attention.batch_layout import BatchLayout


class SharingChecker:
    """A `PagedAttention` that counts the calls in which rows shared keys.

    `group_rows` is the maximum number of rows in a group.
    """

    def __init__(self, group_rows: int) -> None:
        self.group_rows = group_rows
        self.calls = 0
        self.shared = 0

    def __call__(self, q: Tensor, kv: Tensor, layout: BatchLayout, *how: Any) -> Tensor:
        self.calls += 1
        if layout.shared is not None:
            self.shared += self._check(layout, block_size=kv.shape[3])
        return paged_attention.reference(q, kv, layout, *how)

    def _check(self, layout: BatchLayout, block_size: int) -> bool:
        """Return whether any group shares keys. Raises AssertionError if rows' blocks differ."""
        assert layout.shared is not None
        level = layout.shared
        assert level.max_group_rows == self.group_rows
        starts, ends = level.group_starts.tolist(), level.key_ends.tolist()
        assert (starts[0], starts[-1]) == (0, layout.num_decodes), "every decode row is in one"
        own = layout.shared.own_starts.tolist()
        contexts, tables = layout.context_lens.tolist(), layout.block_tables.tolist()
        for first, behind, end in zip(starts[:-1], starts[1:], ends, strict=True):
            assert 0 <= behind - first <= self.group_rows
            assert end % block_size == 0
            blocks = {tuple(tables[row][: end // block_size]) for row in range(first, behind)}
            assert len(blocks) <= 1
            for row in range(first, behind):
                assert own[row] == end <= contexts[row]
        return any(ends)
