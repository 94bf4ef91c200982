"""The sizes of the programs that scan prompts, chosen by dtype and size of a state."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ScanTuning:
    """Columns of a state that a program has, its warps, and the chunks that it loads ahead."""

    columns: int
    warps: int
    stages: int


def scan_tuning(dtype: torch.dtype, columns: int) -> ScanTuning:
    """Choose for a state of `columns` columns, a multiple of 16.

    Products of float32 numbers are three of TF32 each: a compiler that has no instruction for them
    keeps whole tiles on the stack. Their operands leave no shared memory to load ahead.
    """
    return ScanTuning(
        columns=32 if columns % 32 == 0 else 16,
        warps=4,
        stages=1 if dtype == torch.float32 else 2,
    )
