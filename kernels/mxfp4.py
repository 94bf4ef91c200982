"""The repacking of matrices from mxfp4, a format of model files.

    blocks (N, K / 32, 16) uint8    a byte has two numbers (e2m1), the first in its low 4 bits
    scales (N, K / 32) uint8        2 ** (scale - 127) (e8m0)

32 numbers, floats of four bits, share a power of two. The absolute value of a number is 0, 0.5, 1,
1.5, 2, 3, 4 or 6. Its sign is in its highest bit. The format is OCP's MX 1.0. In memory the numbers
have another order (`experts.four_bit_matrices`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.experts.four_bit_matrices import mxfp4_scales, words_of

GROUP = 32  # count of numbers that share a scale


def shapes(experts: int, rows: int, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of blocks and scales. `columns` is a multiple of GROUP."""
    scales = experts, rows, columns // GROUP
    return (*scales, GROUP // 2), scales


def values_of(blocks: Tensor) -> Tensor:
    """Repack blocks (N, K / 32, 16) -> (K / 128, N, 32) int16."""
    codes = torch.stack((blocks & 0xF, blocks >> 4), dim=-1)
    return words_of(codes.flatten(1), "mxfp4")


def scales_of(scales: Tensor) -> Tensor:
    """Repack scales (N, K / 32) -> (K / 128, N) int32."""
    return mxfp4_scales(scales)
