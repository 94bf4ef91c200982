"""The gate of the MLP (SwiGLU): y = silu(gate) * up, with gate and up side by side in one tensor.

    gate_up (T, 2I) = [gate (I) | up (I)]        silu(z) = z / (1 + exp(-z))

Computed in float32 and rounded once; two separate steps would round twice in bf16 and fp16. Where
a product in fp8 reads y, the same kernel quantises it, from y as it would have been written.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.launch.row_warps import row_warps
from kernels.linear import fp8_rows
from kernels.linear.fp8_rows import MOST_WARPS, Fp8Rows, Scaling, store_scaled

_COLUMNS = 1024


def reference(gate_up: Tensor) -> Tensor:
    """gate_up (T, 2I) -> (T, I) of the same dtype. Plain PyTorch."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def reference_fp8(gate_up: Tensor, by: Scaling) -> Fp8Rows:
    """As `reference`, in fp8."""
    return fp8_rows.reference(reference(gate_up), by)


@triton.jit
def _kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    row_stride: tl.tensor,
    SIZE: tl.constexpr,
    C: tl.constexpr,
    FP8: tl.constexpr,
    GROUP: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * C
    column = first + tl.arange(0, C)
    inside = column < SIZE
    gate = tl.load(gate_up + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + SIZE + column, mask=inside, other=0.0)
    result = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
    if FP8:
        wide = tl.where(inside, result.to(up.dtype).to(tl.float32), 0.0)
        store_scaled(wide[None, :], out, scales, row, first, SIZE, C, GROUP)
    else:
        tl.store(out + row * SIZE + column, result.to(up.dtype), mask=inside)


def launch(gate_up: Tensor) -> Tensor:
    """As `reference`, on the device, for rows that are contiguous; any row stride."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    _launch(gate_up, out, out, _COLUMNS, None)
    return out


def launch_fp8(gate_up: Tensor, by: Scaling) -> Fp8Rows:
    """As `reference_fp8`, on the device. A scale of a whole row takes a program a row."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = fp8_rows.empty_rows(tokens, size, by, gate_up.device)
    columns = _COLUMNS if by == "group" else next_power_of_2(size)
    _launch(gate_up, out.values, out.scales, columns, by)
    return out


def _launch(gate_up: Tensor, out: Tensor, scales: Tensor, columns: int, by: Scaling | None) -> None:
    tokens, size = out.shape
    if tokens:
        _kernel[(tokens, cdiv(size, columns))](
            gate_up,
            out,
            scales,
            gate_up.stride(0),
            SIZE=size,
            C=columns,
            FP8=by is not None,
            GROUP=0 if by is None else fp8_rows.group_of(by),
            num_warps=row_warps(columns, MOST_WARPS),
            **dependent_launch(gate_up.device),
        )
