"""Random four-bit matrices of experts, and the numbers that they encode."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.experts.four_bit_matrices import (
    FourBitMatrix,
    Kind,
    int4_scales,
    mxfp4_scales,
    words_of,
)

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def drawn(
    kind: Kind,
    shape: tuple[int, int, int],
    group: int = 32,
    dtype: torch.dtype = torch.float32,
    *,
    bias: bool = False,
) -> tuple[FourBitMatrix, Tensor]:
    """Draw a matrix of `shape` (E, N, K); return it, and its numbers in float64."""
    (experts, rows, columns), generator = shape, torch.Generator().manual_seed(sum(shape))

    def integers(least: int, most: int, *sizes: int) -> Tensor:
        return torch.randint(least, most, sizes, generator=generator)

    codes = integers(0, 16, *shape)
    by_group = experts, rows, columns // group
    if kind == "mxfp4":
        exponents = integers(118, 125, *by_group)
        scales = torch.stack([mxfp4_scales(one.byte()) for one in exponents])
        sign = torch.where(codes < 8, 1.0, -1.0).double()
        numbers = sign * torch.tensor(E2M1, dtype=torch.float64)[codes % 8]
        numbers *= (exponents.double() - 127).exp2().repeat_interleave(group, 2)
    else:
        # the dtype of scales in published files
        kept = torch.float16 if dtype == torch.float32 else dtype
        steps = (torch.rand(by_group, generator=generator) / 100 + 0.001).to(kept)
        zeros = integers(1, 17, *by_group)  # GPTQ's zero points go up to 16
        words = int4_scales(steps, zeros.int()).transpose(1, 2)
        spare = -(-columns // 128) * 128 // group - words.shape[1]
        scales = torch.nn.functional.pad(words, (0, 0, 0, spare)).contiguous()
        numbers = (codes - zeros.repeat_interleave(group, 2)).double()
        numbers *= steps.double().repeat_interleave(group, 2)
    values = torch.stack([words_of(one.byte(), kind) for one in codes])
    shift = torch.randn(experts, rows, generator=generator).to(dtype) if bias else None
    return FourBitMatrix(kind, columns, group, dtype, values, scales, shift), numbers


def moved(matrix: FourBitMatrix, device: str) -> FourBitMatrix:
    """Move the matrix to another device."""
    shift = None if matrix.bias is None else matrix.bias.to(device)
    values, scales = matrix.values.to(device), matrix.scales.to(device)
    return replace(matrix, values=values, scales=scales, bias=shift)
