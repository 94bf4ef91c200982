"""The sizes of the programs that scan prompts, chosen by dtype and device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch.capability import HOPPER, capability

_MOST_KEYS = 128  # three chunks of heads with more numbers do not fit into shared memory


@dataclass(frozen=True, slots=True)
class ScanTuning:
    """The sizes of a scan: a program's state columns, warps, and chunks that are loaded ahead."""

    columns: int
    warps: int
    stages: int


def scan_tuning(dtype: torch.dtype) -> ScanTuning:
    """Choose the tuning for inputs of this dtype. The state has a multiple of 16 columns.

    There are two warps, because four warps would use Hopper's own matrix instructions. If a loop
    has several products with these instructions, Triton 3.6 and 3.7 compile it wrongly
    (triton-lang/triton#11366). With more than 16 columns, two warps would keep the state on the
    stack, which is slow.

    A product of float32 numbers is computed as three products of TF32 numbers, because the compiler
    has no instruction for float32. The operands of these products need so much shared memory that
    chunks cannot be loaded ahead.
    """
    return ScanTuning(columns=16, warps=2, stages=1 if dtype == torch.float32 else 2)


def delta_scan_tuning(qkv: Tensor, keys: int, values: int) -> ScanTuning:
    """Choose the tuning of the delta rule's scan. A head has `keys` (K) and `values` (V).

    The scan's products have a row for each column of the state. Hopper's own matrix instructions
    need 64 rows, so programs of 32 columns do not use them and may have four warps (`scan_tuning`
    explains why programs must not use them). 8,192 tokens of Qwen3.5-27B took 0.70 ms with 16
    columns and two warps, and 0.36 ms with 32 columns and four warps.
    """
    is_hopper = capability(qkv.device) == HOPPER
    if is_hopper and qkv.element_size() == 2 and keys <= _MOST_KEYS and values % 32 == 0:
        return ScanTuning(columns=32, warps=4, stages=3)
    return scan_tuning(qkv.dtype)
