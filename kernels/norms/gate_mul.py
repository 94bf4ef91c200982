"""The gate of the MLP: y = act(gate) * up. One tensor contains gate and up, side by side.

    gate_up (T, 2I) = [gate (I) | up (I)]
    silu(z) = z / (1 + exp(-z))                                                 SwiGLU
    gelu_tanh(z) = z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))            GeGLU

`Gate` describes how a limit changes y. Without a gate, y is relu(up)^2 of up (T, I).

y is computed in float32 and rounded once. With two separate kernels, bf16 and fp16 numbers would be
rounded twice. If an fp8 product reads y, this kernel rounds y to the dtype of its input and then
quantises y.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.capability import HOPPER, capability
from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.launch.row_warps import row_warps
from kernels.linear import fp8_rows
from kernels.linear.fp8_rows import Fp8Rows, Scaling, store_scaled
from kernels.norms.gate import Gate

# Maximum warps of a program for a row: few, so that more programs run at the same time.
FP8_WARPS = 16
_COLUMNS = 1024

# Multiply by the reciprocal. Numbers much smaller than 1 may become 0 before 1 is added.
SILU = tl.constexpr("""{ .reg .f32 t;
    mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000;
    rcp.approx.ftz.f32 t, t; mul.f32 $0, $1, t; }""")
TO_BFLOAT16 = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")  # converts two numbers at the same time


def reference(gate_up: Tensor, gate: Gate) -> Tensor:
    """Apply the gate to gate_up (T, 2I) -> (T, I), same dtype. Plain PyTorch, in float32."""
    if gate.act == "relu2":
        return gate_up.float().relu().square().to(gate_up.dtype)
    inner, up = gate_up.float().chunk(2, dim=-1)
    if gate.limit is not None:
        inner, up = inner.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit)
        gated = inner * torch.sigmoid(gate.alpha * inner) * (up + 1)
    elif gate.act == "gelu_tanh":
        gated = F.gelu(inner, approximate="tanh") * up
    else:
        gated = F.silu(inner) * up
    return gated.to(gate_up.dtype)


def reference_fp8(gate_up: Tensor, gate: Gate, by: Scaling) -> Fp8Rows:
    """Compute `reference`, and quantise the result to fp8."""
    return fp8_rows.reference(reference(gate_up, gate), by)


@triton.jit
def gated(
    gate: tl.tensor,
    up: tl.tensor,
    limit: tl.tensor,
    alpha: tl.tensor,
    ACT: tl.constexpr,
    LIMITED: tl.constexpr,
) -> tl.tensor:
    """Apply `Gate` to `gate` (float32) and `up`. `limit` and `alpha` may be constants."""
    if LIMITED:
        up = up.to(tl.float32)
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        gate = gate / (1.0 + tl.exp(-alpha * gate))
    elif ACT == "gelu_tanh":
        # (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z))
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        gate = gate / (1.0 + tl.exp(-inner))
    elif ACT == "relu2":
        gate = tl.maximum(gate, 0.0)
        up = gate
    else:
        gate = gate / (1.0 + tl.exp(-gate))
    return gate * up.to(tl.float32)


@triton.jit
def _swiglu(gate: tl.tensor, up: tl.tensor) -> tl.tensor:
    """Compute silu(gate) * up in few instructions. The result has the 16-bit dtype of `up`."""
    silu = tl.inline_asm_elementwise(
        SILU, "=f,f", [gate.to(tl.float32)], dtype=tl.float32, is_pure=True, pack=1
    )
    result = silu * up.to(tl.float32)
    if up.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            TO_BFLOAT16, "=r,f,f", [result], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return result.to(up.dtype)


@triton.jit
def _gate_mul_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    row_stride: tl.tensor,
    SIZE: tl.constexpr,
    C: tl.constexpr,
    FP8: tl.constexpr,
    GROUP: tl.constexpr,
    ACT: tl.constexpr,
    LIMITED: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    FAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * C
    column = first + tl.arange(0, C)[None, :]
    inside = column < SIZE
    gate = tl.load(gate_up + row * row_stride + column, mask=inside, other=0.0)
    up = gate
    if ACT != "relu2":
        up = tl.load(gate_up + row * row_stride + SIZE + column, mask=inside, other=0.0)
    if FAST:
        result = _swiglu(gate, up)
    else:
        result = gated(gate.to(tl.float32), up, LIMIT, ALPHA, ACT, LIMITED).to(up.dtype)
    if FP8:
        wide = tl.where(inside, result.to(tl.float32), 0.0)
        store_scaled(wide, out, scales, row, first, SIZE, C, GROUP)
    else:
        tl.store(out + row * SIZE + column, result, mask=inside)


def launch(gate_up: Tensor, gate: Gate) -> Tensor:
    """Compute `reference` on the device. Rows must be contiguous, with any row stride."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // gate.factors
    out = torch.empty((tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    _launch(gate_up, gate, out, out, _COLUMNS, None)
    return out


def launch_fp8(gate_up: Tensor, gate: Gate, by: Scaling) -> Fp8Rows:
    """Compute `reference_fp8` on the device. If a row has one scale, a program computes the row."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // gate.factors
    out = fp8_rows.empty_rows(tokens, size, by, gate_up.device)
    columns = _COLUMNS if by == "group" else next_power_of_2(size)
    _launch(gate_up, gate, out.values, out.scales, columns, by)
    return out


def _launch(
    gate_up: Tensor, gate: Gate, out: Tensor, scales: Tensor, columns: int, by: Scaling | None
) -> None:
    tokens, size = out.shape
    if tokens:
        _gate_mul_kernel[(tokens, cdiv(size, columns))](
            gate_up,
            out,
            scales,
            gate_up.stride(0),
            SIZE=size,
            C=columns,
            FP8=by is not None,
            GROUP=0 if by is None else fp8_rows.group_of(by),
            ACT=gate.act,
            LIMITED=gate.limit is not None,
            LIMIT=gate.limit or 0.0,
            ALPHA=gate.alpha,
            FAST=by is not None and _is_fast(gate_up, gate),
            num_warps=row_warps(columns, FP8_WARPS),
            **dependent_launch(gate_up.device),
        )


def _is_fast(gate_up: Tensor, gate: Gate) -> bool:
    return (
        gate.act == "silu"
        and gate.limit is None
        and gate_up.dtype.itemsize == 2
        and capability(gate_up.device) == HOPPER
    )
