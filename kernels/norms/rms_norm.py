"""The root-mean-square norm: y = weight * x / sqrt(mean(x^2) + eps), over the last dimension.

The mean and the division are computed in float32. The quotient is rounded to the dtype of the
weight before it is multiplied by the weight. If the weight has x's dtype, the results are those of
Llama's reference code. If the weight is float32, the product is float32 too, and is rounded once,
like in the reference code of Gemma and gpt-oss.

Elsewhere: the residual stream (`add_rms_norm`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.rounding import next_power_of_2
from kernels.launch.row_warps import row_warps
from kernels.limits import check_hidden_size


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm x (T, H) by weight (H,) of its dtype or float32 -> (T, H) of x's dtype.

    Plain PyTorch. x may have any number of leading dimensions. Raises UnsupportedShape.
    """
    check_hidden_size(x.shape[-1])
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * (wide * scale).to(weight.dtype)).to(x.dtype)


@triton.jit
def scaled_rows(x: tl.tensor, weight: tl.tensor, eps: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """Norm rows of x (rows, padded) float32, 0 beyond `size` -> rows of the weight's dtype."""
    mean_square = tl.sum(x * x, axis=1) / size
    normed = (x * tl.rsqrt(mean_square + eps)[:, None]).to(weight.dtype)
    return (normed.to(tl.float32) * weight.to(tl.float32)).to(weight.dtype)


@triton.jit
def _rms_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    x_stride: tl.tensor,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, H_PADDED)[None, :]
    inside = column < H
    wide = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0)
    place = out + row * H + column
    tl.store(place, scaled_rows(wide, scale, eps, H).to(out.dtype.element_ty), mask=inside)


def launch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute `reference` on the device for x (T, H), rows contiguous, with any row stride."""
    tokens, hidden = x.shape
    check_hidden_size(hidden)
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    if tokens:
        padded = next_power_of_2(hidden)
        warps = row_warps(padded)
        _rms_norm_kernel[(tokens,)](
            x, weight, out, eps, x.stride(0), H=hidden, H_PADDED=padded, num_warps=warps
        )
    return out
