"""The gated RMS norm at the end of a recurrent layer, over groups of columns.

    gate after    weight * rms_norm(x) * silu(gate)         Gated DeltaNet, by head
    gate first    weight * rms_norm(x * silu(gate))         Mamba-2, by group

rms_norm(x) is x / sqrt(mean of x^2 over the group + eps), computed in float32. The quotient is
rounded to the weight's dtype before it is multiplied by the weight.
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
from kernels.limits import check_hidden_size

_COLUMNS = 1024  # number of columns of a program, unless a group is larger


def reference(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, group: int, gate_first: bool
) -> Tensor:
    """Norm x (T, C) in groups of `group` columns, and apply gate (T, C) -> (T, C) of x's dtype.

    weight is (C,), or (group,) for all groups. Plain PyTorch. Raises UnsupportedShape.
    """
    check_hidden_size(group)
    opened = F.silu(gate.float())
    wide = x.float() * opened if gate_first else x.float()
    groups = wide.unflatten(1, (-1, group))
    normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    by_group = weight.view(-1, group)
    normed = (normed.to(weight.dtype) * by_group).flatten(1)
    gated: Tensor = normed if gate_first else normed.float() * opened
    return gated.to(x.dtype)


@triton.jit
def _gated_norm_kernel(
    x: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    x_stride: tl.tensor,
    gate_stride: tl.tensor,
    C: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    GROUPS: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    within = tl.arange(0, GROUP_PADDED)[None, :]
    number = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)[:, None]
    column = number * GROUP + within
    inside = (within < GROUP) & (column < C)
    wide = tl.load(x + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    opened = tl.load(gate + token * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    opened = opened / (1.0 + tl.exp(-opened))
    if GATE_FIRST:
        wide *= opened
    factors = tl.load(weight + (column if BY_COLUMN else within), mask=inside, other=0.0)
    dtype = factors.dtype
    mean_square = tl.sum(wide * wide, axis=1) / GROUP
    normed = (wide * tl.rsqrt(mean_square + eps)[:, None]).to(dtype)
    normed = (normed.to(tl.float32) * factors.to(tl.float32)).to(dtype)
    if not GATE_FIRST:
        normed = normed.to(tl.float32) * opened
    tl.store(out + token * C + column, normed.to(out.dtype.element_ty), mask=inside)


def launch(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, group: int, gate_first: bool
) -> Tensor:
    """Compute `reference` on the device. x and gate may have any row stride."""
    check_hidden_size(group)
    tokens, columns = x.shape
    out = torch.empty((tokens, columns), dtype=x.dtype, device=x.device)
    if tokens:
        padded = next_power_of_2(group)
        groups = max(_COLUMNS // padded, 1)
        _gated_norm_kernel[(tokens, cdiv(columns // group, groups))](
            x,
            gate,
            weight,
            out,
            eps,
            x.stride(0),
            gate.stride(0),
            C=columns,
            GROUP=group,
            GROUP_PADDED=padded,
            GROUPS=groups,
            GATE_FIRST=gate_first,
            BY_COLUMN=weight.shape[0] == columns,
            num_warps=row_warps(padded * groups),
            **dependent_launch(x.device),
        )
    return out
