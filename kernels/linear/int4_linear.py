"""A linear layer with a 4-bit integer matrix: y = x @ weight.T + bias. x has the model's dtype.

    rows of x    computed by                                       bytes moved for each weight
    up to 128    `product_kernel`: dequantised in registers        0.5, once for each 64 rows
    more         `dequantise_kernel` to a scratch matrix of 16     0.5 + 2, then the product's 2
                 bits, and the usual product

Both methods multiply by the numbers of `Int4Matrix.dequantised`, so only the order of sums depends
on the number of rows. If x is float32, the complete matrix is always dequantised. The kernel
divides K into shares, whose number depends only on the matrix. Each share's sum is float32, and the
next kernel adds the sums in order (`split_k`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.linear import linear
from kernels.linear.int4_kernels import dequantise_kernel, product_kernel
from kernels.linear.int4_matrix import SPAN, Int4Matrix

Int4LinearOp = Callable[[Tensor, Int4Matrix, Tensor | None], Tensor]
"""x (T, K), weight (N, K), bias (N,) or None -> (T, N)."""

MAX_ROWS = 128
_MOST_IN_PROGRAM = 64
# The row counts at which the choice of kernel changes.
TELLING_ROWS = (16, 32, _MOST_IN_PROGRAM, MAX_ROWS + 1)
_MIN_ROWS = 16  # minimum number of rows of an operand of the matrix units
_STRIP, _STAGES = 64, 4  # matrix rows of a program, and tiles that it loads ahead
_WIDE_STRIP = 128  # strip for more rows of x. Each strip reads x again from the L2 cache.
_ROWS_OF_WARP = 16
_PROGRAMS = 528  # four for each multiprocessor of an H200, so that they can dequantise in turns
_MIN_SPANS = 8
_MAX_SHARES = 8


def reference(x: Tensor, weight: Int4Matrix, bias: Tensor | None) -> Tensor:
    """Multiply x by the dequantised matrix in x's dtype. Plain PyTorch."""
    return F.linear(x, weight.dequantised(x.dtype), bias)


def launch(x: Tensor, weight: Int4Matrix, bias: Tensor | None) -> Tensor:
    """Compute `reference` on the device. Rows of x must be contiguous."""
    if _is_for_few_rows(x, weight):
        return in_registers(x, weight, bias, shares=1)
    return linear.launch(x, written_out(weight, x.dtype), bias)


def launch_split_k(x: Tensor, weight: Int4Matrix, bias: Tensor | None) -> Tensor:
    """Compute `launch` -> (T, N), or parts (S, T, N) float32, which the next kernel adds."""
    if _is_for_few_rows(x, weight):
        return in_registers(x, weight, bias, shares=shares_of(weight))
    return linear.launch_split_k(x, written_out(weight, x.dtype), bias)


def _is_for_few_rows(x: Tensor, weight: Int4Matrix) -> bool:
    dtype = weight.scales.dtype
    return 0 < x.shape[0] <= MAX_ROWS and x.dtype == dtype and dtype.itemsize == 2


def shares_of(weight: Int4Matrix) -> int:
    """Choose the number of shares of K with which programs use the full device.

    Each share has at least _MIN_SPANS spans.
    """
    features, width = weight.shape
    most = min(_MAX_SHARES, width // (SPAN * _MIN_SPANS))
    return max(min(_PROGRAMS // cdiv(features, _STRIP), most), 1)


def in_registers(x: Tensor, weight: Int4Matrix, bias: Tensor | None, *, shares: int) -> Tensor:
    """Multiply by `product_kernel` -> (T, N) or parts. Needs a 16-bit dtype and a row or more."""
    (rows, width), features = x.shape, weight.shape[0]
    dtype = x.dtype if shares == 1 else torch.float32
    out = torch.empty((shares, rows, features), dtype=dtype, device=x.device)
    at_once = min(max(next_power_of_2(rows), _MIN_ROWS), _MOST_IN_PROGRAM)
    strip = _STRIP if at_once == _MIN_ROWS else _WIDE_STRIP
    product_kernel[(cdiv(rows, at_once), cdiv(features, strip), shares)](
        x,
        weight.values,
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        weight.scales if bias is None else bias,
        out,
        rows,
        x.stride(0),
        N=features,
        K=width,
        GROUP=weight.group,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=bias is not None,
        ROWS=at_once,
        STRIP=strip,
        SPAN=SPAN,
        STAGES=_STAGES,
        num_warps=strip // _ROWS_OF_WARP,
        **dependent_launch(x.device),
    )
    return out[0] if shares == 1 else out


def written_out(weight: Int4Matrix, dtype: torch.dtype) -> Tensor:
    """Dequantise the complete matrix on the device, like `Int4Matrix.dequantised`."""
    if dtype != weight.scales.dtype or dtype.itemsize != 2:
        return weight.dequantised(dtype)
    features, width = weight.shape
    out = torch.empty((features, width), dtype=dtype, device=weight.values.device)
    dequantise_kernel[(width // SPAN, cdiv(features, _STRIP))](
        weight.values,
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out,
        N=features,
        K=width,
        GROUP=weight.group,
        HAS_ZEROS=weight.zeros is not None,
        STRIP=_STRIP,
        SPAN=SPAN,
        num_warps=4,
        **dependent_launch(out.device),
    )
    return out
