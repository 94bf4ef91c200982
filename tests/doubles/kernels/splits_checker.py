"""An attention that computes by the reference, and checks that the work units cover all keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernels.attention import paged_attention
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.tuning import DecodeTuning, decode_tuning, shared_tuning


class UnitsChecker:
    """A `PagedAttention` that counts the launches with split items, by level: (shared, own)."""

    def __init__(self) -> None:
        self.shared = 0
        self.own = 0

    def __call__(self, q: Tensor, kv: Tensor, layout: BatchLayout, *how: Any) -> Tensor:
        self._check(layout, kv)
        return paged_attention.reference(q, kv, layout, *how)

    def _check(self, layout: BatchLayout, kv: Tensor) -> None:
        assert layout.splits is not None
        splits, kv_heads = layout.splits.tolist(), kv.shape[1]
        own = layout.context_lens[: layout.num_decodes]
        if layout.shared is not None:
            lengths = layout.shared.key_ends.tolist()
            tuning = shared_tuning(kv.shape[-1], kv.dtype)
            self.shared += check_units(lengths, splits.pop(0), tuning, kv_heads)
            own = own - layout.shared.own_starts
        [of_rows] = splits
        tuning = decode_tuning(kv.shape[-1], kv.dtype)
        self.own += check_units(own.tolist(), of_rows, tuning, kv_heads)


def check_units(
    lengths: Sequence[int], splits: Sequence[int], tuning: DecodeTuning, kv_heads: int
) -> bool:
    """Return whether any item is split. Raises AssertionError if a launch would leave keys out."""
    keys, more = splits
    assert keys >= tuning.least_keys
    assert keys % tuning.tile == 0
    tiles = [-(-length // tuning.tile) for length in lengths]
    needed = sum(max(-(-held // (keys // tuning.tile)), 1) - 1 for held in tiles)
    assert needed == more <= tuning.most_splits(kv_heads)
    return more > 0
