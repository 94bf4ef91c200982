"""Matrices in mxfp4: four-bit floats (e2m1), 32 of which share a power of two (e8m0).

    blocks (..., K / 32, 16) uint8    a byte has two numbers, the first in its lower half
    scales (..., K / 32) uint8        2 ** (scale - 127)

A number is one of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, with its sign in the highest bit. They are written
out as a checkpoint is loaded; there is no product in mxfp4. The format is OCP's MX 1.0.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32  # numbers that share a scale
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127


def shapes(experts: int, rows: int, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those of blocks and scales; `columns` are whole groups."""
    scales = experts, rows, columns // GROUP
    return (*scales, GROUP // 2), scales


def written_out(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """blocks (E, N, K / 32, 16), scales (E, N, K / 32) -> (E, N, K), exactly if `dtype` has room.

    One matrix after the other, so that little more than the result is in memory.
    """
    *shape, groups = scales.shape
    out = torch.empty((*shape, groups, GROUP), dtype=dtype, device=blocks.device)
    for matrix, own_blocks, own_scales in zip(out, blocks, scales, strict=True):
        _write_out(matrix, own_blocks, own_scales)
    return out.flatten(-2)


def _write_out(out: Tensor, blocks: Tensor, scales: Tensor) -> None:
    numbers = torch.tensor([*_MAGNITUDES, *(-one for one in _MAGNITUDES)], device=blocks.device)
    pairs = torch.stack((blocks & 0xF, blocks >> 4), dim=-1).flatten(-2)
    exponents = scales.int() - _BIAS
    out.copy_(torch.ldexp(numbers[pairs.int()], exponents[..., None]))
