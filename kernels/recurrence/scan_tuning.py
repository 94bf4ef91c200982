"""The sizes of the programs that scan prompts, chosen by dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ScanTuning:
    """The sizes of a scan: a program's state columns and warps, and the chunks loaded ahead."""

    columns: int
    warps: int
    stages: int


def scan_tuning(dtype: torch.dtype) -> ScanTuning:
    """Choose the tuning for inputs of this dtype, and states of any multiple of 16 columns.

    There are two warps, since four warps use Hopper's own matrix instructions. With these, Triton
    3.6 and 3.7 compile several products in a loop wrongly (triton-lang/triton#11366). With more
    than 16 columns two warps keep the state on the stack. 8,192 tokens of Qwen3.5-27B took 12.9 ms
    with 32 columns, and 2.3 ms with 16.

    A product of float32 numbers is computed as three products of TF32, since the compiler has no
    instruction for float32. The operands of the three products leave no shared memory to load
    chunks ahead.
    """
    return ScanTuning(columns=16, warps=2, stages=1 if dtype == torch.float32 else 2)
