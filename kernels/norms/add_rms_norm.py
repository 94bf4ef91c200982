"""Residual add and RMS norm in one pass: r' = x + residual, y = rms_norm(r', weight, eps).

The sum is rounded to the dtype of x before it is normed, as it is when the two steps run one
after the other; so is x where it comes in parts (`parts`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import next_power_of_2
from kernels.limits import check_hidden_size
from kernels.linear import split_k as parts
from kernels.linear.split_k import load_summed
from kernels.norms import rms_norm
from kernels.norms.rms_norm import row_warps, scaled_rows


def reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual (T, H), weight (H,) of one dtype -> (normed, new residual), both (T, H).

    x may come in parts (S, T, H) float32. Neither input is changed. Raises UnsupportedShape.
    """
    total = parts.whole(x, residual.dtype) + residual
    return rms_norm.reference(total, weight, eps), total


@triton.jit
def _kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    total: tl.tensor,
    eps: tl.tensor,
    part_stride: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    PARTS: tl.constexpr,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, H_PADDED)[None, :]
    inside = column < H
    right = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
    left = load_summed(x + row * x_stride + column, part_stride, inside, PARTS).to(right.dtype)
    summed = (left.to(tl.float32) + right.to(tl.float32)).to(right.dtype)
    tl.store(total + row * H + column, summed, mask=inside)
    scale = tl.load(weight + column, mask=inside, other=0.0)
    result = scaled_rows(summed.to(tl.float32), scale, eps, H)
    tl.store(normed + row * H + column, result, mask=inside)


def launch(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `reference`, on the device, for inputs whose rows are contiguous; any row stride."""
    tokens, hidden = residual.shape
    check_hidden_size(hidden)
    normed = torch.empty((tokens, hidden), dtype=residual.dtype, device=x.device)
    total = torch.empty((tokens, hidden), dtype=residual.dtype, device=x.device)
    if tokens:
        padded = next_power_of_2(hidden)
        num_parts, *strides = parts.layout(x)
        _kernel[(tokens,)](
            x,
            residual,
            weight,
            normed,
            total,
            eps,
            *strides,
            residual.stride(0),
            PARTS=num_parts,
            H=hidden,
            H_PADDED=padded,
            num_warps=row_warps(padded),
            **dependent_launch(x.device),
        )
    return normed, total
