"""The gate of the MLP (SwiGLU): y = silu(gate) * up, with gate and up side by side in one tensor.

    gate_up (T, 2I) = [gate (I) | up (I)]        silu(z) = z / (1 + exp(-z))

Computed in float32 and rounded once; two separate steps would round twice in bf16 and fp16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv

_COLUMNS = 1024


def reference(gate_up: Tensor) -> Tensor:
    """gate_up (T, 2I) -> (T, I) of the same dtype. Plain PyTorch."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


@triton.jit
def _kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    row_stride: tl.tensor,
    SIZE: tl.constexpr,
    C: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * C + tl.arange(0, C)
    inside = column < SIZE
    gate = tl.load(gate_up + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + SIZE + column, mask=inside, other=0.0)
    result = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
    tl.store(out + row * SIZE + column, result.to(up.dtype), mask=inside)


def launch(gate_up: Tensor) -> Tensor:
    """As `reference`, on the device, for rows that are contiguous; any row stride."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        grid = (tokens, cdiv(size, _COLUMNS))
        early = dependent_launch(gate_up.device)
        _kernel[grid](gate_up, out, gate_up.stride(0), SIZE=size, C=_COLUMNS, **early)
    return out
