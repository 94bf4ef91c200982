"""A linear layer, y = x @ weight.T + bias, computed by the fastest of three methods.

With few rows, reading the weight is most of the work. A kernel of this module then computes y:

    weight (N, K)   a program for each strip of 64 rows, all of K   x (T, K), T at most 32,
    [========]      tiles of 64 x 128, six loaded at a time         comes from the L2 cache
    [========]

For these products cuBLAS divides K among programs. A second kernel then adds the sums, and no
weight is read during this time. cuBLAS still computes products with too few or very many strips,
and products of other dtypes.

On Hopper, `hopper_linear` computes up to 8 rows, and its result may be split-K partials. Torch
computes all other products, with cuBLAS or cuBLASLt. Torch does not call cuBLASLt by default, but
for some numbers of rows cuBLASLt chooses a faster kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.linear import hopper_linear

MAX_ROWS = 32
MIN_STRIPS, MAX_STRIPS = 48, 128
_STRIP, _TILE, _STAGES = 64, 128, 6
_MIN_ROWS = 16
_LT_ROWS = range(MAX_ROWS + 1, 113)  # row counts for which cuBLASLt was faster in measurements
_LT_FEATURES = 32_768  # maximum number of weight rows for cuBLASLt; a model's output head has more
_FEW_ON_CPU = range(2, 5)  # row counts for which torch's float32 product on CPUs is slow


LinearOp = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x (T, K), weight (N, K), bias (N,) or None -> (T, N)."""


def reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x (T, K) by weight (N, K), and add bias (N,), if any -> (T, N). Plain PyTorch."""
    return F.linear(x, weight, bias)


def on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `reference` on a CPU. Few rows in float32 are computed as columns, in half the time.

    Otherwise a step that verifies two drafted tokens takes as long as two steps.
    """
    if x.dtype != torch.float32 or x.shape[0] not in _FEW_ON_CPU:
        return reference(x, weight, bias)
    product = torch.mm(weight, x.t()).t().contiguous()
    return product if bias is None else product + bias


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    x_stride: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    STRIP: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    feature = tl.program_id(0) * STRIP + tl.arange(0, STRIP)
    row, column = tl.arange(0, ROWS), tl.arange(0, TILE)
    inside, real = feature < N, row < rows
    weights = weight + feature[:, None].to(tl.int64) * K + column[None, :]
    inputs = x + row[None, :].to(tl.int64) * x_stride + column[:, None]
    acc = tl.zeros([STRIP, ROWS], dtype=tl.float32)
    for start in tl.range(0, K, TILE, num_stages=STAGES):
        strip = tl.load(weights + start, mask=inside[:, None], other=0.0)
        acc = tl.dot(strip, tl.load(inputs + start, mask=real[None, :], other=0.0), acc)
    if HAS_BIAS:
        acc += tl.load(bias + feature, mask=inside, other=0.0).to(tl.float32)[:, None]
    goal = out + row[None, :].to(tl.int64) * N + feature[:, None]
    tl.store(goal, acc.to(out.dtype.element_ty), mask=inside[:, None] & real[None, :])


def launch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `reference` on the device. The weight and the rows of x must be contiguous."""
    if _is_for_hopper(x, weight, bias) and hopper_linear.config_for(weight).shares == 1:
        return hopper_linear.gemm(x, weight)
    return _anywhere(x, weight, bias)


def launch_split_k(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `launch` -> (T, N), or parts (S, T, N) float32, which the next kernel adds."""
    if _is_for_hopper(x, weight, bias):
        return hopper_linear.gemm(x, weight)
    return _anywhere(x, weight, bias)


def _is_for_hopper(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return bias is None and hopper_linear.serves(x, weight)


def _anywhere(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    (rows, width), features = x.shape, weight.shape[0]
    strips = cdiv(features, _STRIP)
    if not (_is_for_few_rows(x) and MIN_STRIPS <= strips <= MAX_STRIPS):
        return _by_library(x, weight, bias)
    out = x.new_empty((rows, features))
    _linear_kernel[(strips,)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        rows,
        x.stride(0),
        N=features,
        K=width,
        ROWS=max(next_power_of_2(rows), _MIN_ROWS),
        STRIP=_STRIP,
        TILE=_TILE,
        STAGES=_STAGES,
        HAS_BIAS=bias is not None,
        num_warps=4,
        **dependent_launch(x.device),
    )
    return out


def _is_for_few_rows(x: Tensor) -> bool:
    rows, width = x.shape
    return 0 < rows <= MAX_ROWS and width % _TILE == 0 and x.element_size() == 2


def _by_library(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.is_cuda and x.shape[0] in _LT_ROWS and weight.shape[0] <= _LT_FEATURES:
        with asking("cublaslt"):
            return F.linear(x, weight, bias)
    return F.linear(x, weight, bias)


@contextmanager
def asking(library: str) -> Iterator[None]:
    """Make torch use this BLAS library in the complete process until the `with` block ends."""
    usual = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(library)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(usual)
