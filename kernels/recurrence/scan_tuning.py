"""The sizes of the programs that scan prompts, chosen by dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ScanTuning:
    """Columns of a state that a program has, its warps, and the chunks that it loads ahead."""

    columns: int
    warps: int
    stages: int


def scan_tuning(dtype: torch.dtype) -> ScanTuning:
    """Choose for inputs of this dtype, and states of any multiple of 16 columns.

    Two warps, since four take Hopper's own matrix instructions, and Triton 3.6 and 3.7 compile
    several products in a loop wrongly with those: states were off by 3, and some launches read
    memory of others (triton-lang/triton#11366). In more than 16 columns two warps keep the state on
    the stack: 8,192 tokens of Qwen3.5-27B took 12.9 ms in 32 of them, and 2.3 in 16.

    A product of float32 numbers is computed as three of TF32, since the compiler has no instruction
    for float32 and would keep whole tiles on the stack. Its operands leave no shared memory to load
    ahead.
    """
    return ScanTuning(columns=16, warps=2, stages=1 if dtype == torch.float32 else 2)
