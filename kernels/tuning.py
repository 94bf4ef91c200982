"""The shapes of tiles that attention runs with, measured once on an H200 and shipped.

Nothing is tuned while serving: a head dim and a dtype decide. What was measured, and what was
tried and lost, is in docs/performance.md. Knows numbers; does not know the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """How keys are dealt to programs that read them for few queries."""

    tile: int  # keys at a time
    warps: int
    stages: int  # tiles in flight, and one more
    units: int  # programs to aim at, over all KV heads
    least_keys: int  # no unit is cut shorter


@dataclass(frozen=True, slots=True)
class PrefillTuning:
    """How queries and keys are cut for rows with several new tokens."""

    queries: int  # query rows of a program, the heads of a group counted
    tile: int
    warps: int
    stages: int
    programs: int  # with fewer, the keys are split among several
    least_keys: int


def decode_tuning(head_dim: int, dtype: torch.dtype) -> DecodeTuning:
    """For a head dim of up to 256."""
    if dtype == torch.float32:
        return DecodeTuning(_keys_of_16_kib(head_dim, 4), 4, 2, 1024, 256)
    return DecodeTuning(_keys_of_16_kib(head_dim, 2), 4, 3, 1024, 256)


def prefill_tuning(head_dim: int, dtype: torch.dtype) -> PrefillTuning:
    """For a head dim of up to 256: what registers and shared memory hold."""
    if dtype == torch.float32:
        if head_dim <= 128:
            return PrefillTuning(32, 32, 4, 1, 256, 512)
        return PrefillTuning(16, 16, 4, 1, 256, 512)
    if head_dim <= 128:
        return PrefillTuning(128, 128, 8, 2, 256, 512)
    return PrefillTuning(64, 32, 4, 2, 256, 512)


def _keys_of_16_kib(head_dim: int, itemsize: int) -> int:
    """A power of two in 16..128."""
    padded = 1 << (head_dim - 1).bit_length()
    return min(max(16_384 // (padded * itemsize), 16), 128)
