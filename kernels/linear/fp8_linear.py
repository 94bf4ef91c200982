"""A linear layer in fp8: y = x @ weight.T + bias. x and weight are e4m3 and have scales.

    rows         on Hopper                                              elsewhere
    up to 128    `hopper_linear`, where it has a tile config            dequantised
    more         torch's scaled product (cuBLASLt), by channel or block dequantised

x is quantised with every number of rows (`fp8_rows`). Otherwise a prompt's KV would differ between
large and small steps. Torch's scaled product returns bfloat16, which is converted to the model's
dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.launch.capability import HOPPER, capability
from kernels.linear import hopper_linear
from kernels.linear.fp8_matrix import Fp8Matrix
from kernels.linear.fp8_rows import Fp8Rows

Fp8LinearOp = Callable[[Fp8Rows, Fp8Matrix, Tensor | None, torch.dtype], Tensor]
"""x (T, K), weight (N, K), bias (N,) or None, the result's dtype -> (T, N)."""

_ROWS_AT_ONCE = 4  # cuBLASLt needs the rows of block scales in multiples of four


def reference(x: Fp8Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Multiply dequantised numbers in float32, and round the product once. Plain PyTorch."""
    product = x.dequantised() @ weight.dequantised().T
    return (product if bias is None else product + bias.float()).to(dtype)


def launch(x: Fp8Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Compute `reference` on the device -> (T, N)."""
    return _launch(x, weight, bias, dtype, in_parts=False)


def launch_split_k(
    x: Fp8Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Compute `launch` -> (T, N), or parts (S, T, N) float32, which the next kernel adds."""
    return _launch(x, weight, bias, dtype, in_parts=True)


def _launch(
    x: Fp8Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype, *, in_parts: bool
) -> Tensor:
    config = hopper_linear.fp8_config_for(x, weight, in_parts=in_parts)
    if config is not None:
        return hopper_linear.gemm_fp8(x, weight, bias, dtype, config)
    if capability(x.values.device) != HOPPER:
        return F.linear(x.dequantised().to(dtype), weight.dequantised().to(dtype), bias)
    return by_library(x, weight, bias, dtype)


def by_library(x: Fp8Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Compute `launch` with cuBLASLt."""
    product = _by_block(x, weight) if weight.by_block else _by_channel(x, weight)
    whole = product.to(dtype)
    return whole if bias is None else whole.add_(bias)


def _by_channel(x: Fp8Rows, weight: Fp8Matrix) -> Tensor:
    return torch._scaled_mm(
        x.values,
        weight.values.T,
        scale_a=x.scales,
        scale_b=weight.scales.T,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def _by_block(x: Fp8Rows, weight: Fp8Matrix) -> Tensor:
    rows = x.values.shape[0]
    spare = -rows % _ROWS_AT_ONCE
    values = F.pad(x.values.view(torch.int8), (0, 0, 0, spare)).view(x.values.dtype)
    scales = F.pad(x.scales, (0, 0, 0, spare)).T.contiguous().T
    product = torch._scaled_mm(
        values, weight.values.T, scale_a=scales, scale_b=weight.scales.T, out_dtype=torch.bfloat16
    )
    return product[:rows]
