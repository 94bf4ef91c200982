"""Residual add and RMS norm in one pass: r' = x + residual, y = rms_norm(r', weight, eps).

The sum is rounded to the dtype of x before it is normed, as it is when the two steps run one
after the other; so is x where it comes in parts (`parts`). A product in fp8 reads y next: then the
same kernel quantises it, from y as it would have been written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import next_power_of_2
from kernels.launch.row_warps import row_warps
from kernels.limits import check_hidden_size
from kernels.linear import fp8_rows
from kernels.linear import split_k as parts
from kernels.linear.fp8_rows import Fp8Rows, Scaling, store_scaled
from kernels.linear.split_k import load_summed
from kernels.norms import rms_norm
from kernels.norms.rms_norm import scaled_rows


def reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual (T, H), weight (H,) as of `rms_norm` -> (normed, new residual), both (T, H).

    x may come in parts (S, T, H) float32. Neither input is changed. Raises UnsupportedShape.
    """
    total = parts.whole(x, residual.dtype) + residual
    return rms_norm.reference(total, weight, eps), total


def reference_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, by: Scaling
) -> tuple[Fp8Rows, Tensor]:
    """As `reference`, with what is normed in fp8."""
    normed, total = reference(x, residual, weight, eps)
    return fp8_rows.reference(normed, by), total


@triton.jit
def _kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    scales: tl.tensor,
    total: tl.tensor,
    eps: tl.tensor,
    part_stride: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    PARTS: tl.constexpr,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    FP8: tl.constexpr,
    GROUP: tl.constexpr,
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
    result = scaled_rows(summed.to(tl.float32), scale, eps, H).to(summed.dtype)
    if FP8:
        wide = tl.where(inside, result.to(tl.float32), 0.0)
        store_scaled(wide, normed, scales, row, 0, H, H_PADDED, GROUP)
    else:
        tl.store(normed + row * H + column, result, mask=inside)


def launch(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `reference`, on the device, for inputs whose rows are contiguous; any row stride."""
    normed = torch.empty(residual.shape, dtype=residual.dtype, device=x.device)
    return normed, _launch(x, residual, weight, eps, normed, normed, None)


def launch_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, by: Scaling
) -> tuple[Fp8Rows, Tensor]:
    """As `reference_fp8`, on the device, for inputs as `launch` takes them."""
    tokens, hidden = residual.shape
    normed = fp8_rows.empty_rows(tokens, hidden, by, x.device)
    return normed, _launch(x, residual, weight, eps, normed.values, normed.scales, by)


def _launch(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    normed: Tensor,
    scales: Tensor,
    by: Scaling | None,
) -> Tensor:
    """Write `normed`, and its scales where there is a `by`; return the sum."""
    tokens, hidden = residual.shape
    check_hidden_size(hidden)
    total = torch.empty((tokens, hidden), dtype=residual.dtype, device=x.device)
    if tokens:
        padded = next_power_of_2(hidden)
        num_parts, *strides = parts.layout(x)
        _kernel[(tokens,)](
            x,
            residual,
            weight,
            normed,
            scales,
            total,
            eps,
            *strides,
            residual.stride(0),
            PARTS=num_parts,
            H=hidden,
            H_PADDED=padded,
            FP8=by is not None,
            GROUP=0 if by is None else fp8_rows.group_of(by),
            num_warps=row_warps(padded),
            **dependent_launch(x.device),
        )
    return total
