"""A GEMM of few rows, for Hopper, that begins to read its weight before its input is there.

y = x @ weight.T of up to 8 rows takes as long as reading the weight, and the memory is idle while a
kernel waits for the one before it. Here, with TMA copies and PDL (`dependent_launch`), reading the
weight does not wait:

    before   | norm, attention ... |
    producer | weight tiles until shared memory is full ... | tiles of x | weight and x ...
    halves                         (wait)                   | multiply full tiles, free them ...

A program has a strip of 128 rows of the weight and a share of K (split-K); with several shares the
product is left as split-K partials (`split_k`). Two groups of four warps multiply 64 rows each, one
warp copies.

For 16-bit numbers, and for fp8 with scales: of these up to 128 rows are computed, 64 in a program.
Runs on compute capability 9.0 only, and not in the interpreter. Knows: one GEMM. Does not know: its
device code (`hopper_gemm`), or when it is faster than the alternatives (`linear`, `fp8_linear`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.e4m3 import E4M3
from kernels.launch.capability import HOPPER, capability
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.linear.fp8_matrix import Fp8Matrix
from kernels.linear.fp8_rows import Fp8Rows
from kernels.linear.hopper_gemm import gemm_kernel

MAX_ROWS = 8  # N of the smallest WGMMA instruction
MAX_FP8_ROWS = 128
_MOST_IN_PROGRAM = 64  # rows of x
_TILE_BYTES = 128  # of a row in a tile: what shared memory is swizzled by
_STRIP = 128  # rows of the weight in a program: M = 64 of WGMMA, twice
_PROGRAMS = 132  # multiprocessors of an H200; twice as many programs run with half of the memory
_STAGES = 12  # tiles in flight in a program that has all shared memory of a multiprocessor
_SHARED_BYTES = 216 * 1024  # of a multiprocessor, for tiles
_MIN_TILES = 8  # of a share of K
_MAX_SHARES = 8
_REGISTERS = 152  # of a thread at launch; the producer warp keeps 40 of them
_BOXES = gl.NVMMASharedLayout(128, 16, rank=2)  # how copied boxes lie in shared memory
_FP8_BOXES = gl.NVMMASharedLayout(128, 8, rank=2)
_PLAIN, _BY_CHANNEL, _BY_BLOCK = 0, 1, 2  # scales


def serves(x: Tensor, weight: Tensor) -> bool:
    """Whether `gemm` can compute x (T, K) by weight (N, K) with all programs running at once."""
    rows, width = x.shape
    return (
        0 < rows <= MAX_ROWS
        and capability(x.device) == HOPPER
        and x.dtype == weight.dtype
        and x.dtype.itemsize == 2
        and width % tile_of(weight) == 0
        and x.stride(0) % 8 == 0  # TMA takes strides in multiples of 16 bytes
        and strips_of(weight.shape[0]) <= 2 * _PROGRAMS
    )


def serves_fp8(x: Fp8Rows, weight: Fp8Matrix) -> bool:
    """As `serves`, for `gemm_fp8`; of rows for one program, whatever runs at once."""
    rows, width = x.values.shape
    passes = cdiv(rows, _MOST_IN_PROGRAM)
    return (
        0 < rows <= MAX_FP8_ROWS
        and capability(x.values.device) == HOPPER
        and width % tile_of(weight.values) == 0
        and (passes == 1 or passes * strips_of(weight.values.shape[0]) <= 2 * _PROGRAMS)
    )


def tile_of(weight: Tensor) -> int:
    """Columns of a tile."""
    return _TILE_BYTES // weight.dtype.itemsize


def strips_of(features: int) -> int:
    """How many strips a weight of `features` rows has."""
    return -(-features // _STRIP)


def shares_of(weight: Tensor, passes: int = 1) -> int:
    """Among how many programs K is cut: as many as fill the device, with _MIN_TILES tiles each.

    `passes`: programs that read the same share for other rows of x.
    """
    features, width = weight.shape
    most = min(_MAX_SHARES, width // (tile_of(weight) * _MIN_TILES))
    return max(min(_PROGRAMS // (passes * strips_of(features)), most), 1)


def gemm(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, K) with contiguous rows, weight (N, K) contiguous -> (T, N), or parts (S, T, N)."""
    return _launch(x, weight, shares_of(weight), x.dtype, None, None, None, _PLAIN)


def gemm_fp8(
    x: Fp8Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype, *, in_parts: bool
) -> Tensor:
    """As `gemm`, (T, N) of `dtype`; parts only if `in_parts`."""
    passes = cdiv(x.values.shape[0], _MOST_IN_PROGRAM)
    shares = shares_of(weight.values, passes) if in_parts else 1
    scales = _BY_BLOCK if weight.by_block else _BY_CHANNEL
    return _launch(x.values, weight.values, shares, dtype, x.scales, weight.scales, bias, scales)


def _launch(
    x: Tensor,
    weight: Tensor,
    shares: int,
    dtype: torch.dtype,
    x_scales: Tensor | None,
    scales: Tensor | None,
    bias: Tensor | None,
    scaling: int,
) -> Tensor:
    (rows, width), features = x.shape, weight.shape[0]
    strips, tile = strips_of(features), tile_of(weight)
    if shares == 1:
        out = torch.empty((rows, features), dtype=dtype, device=x.device)
    else:
        out = torch.empty((shares, rows, features), dtype=torch.float32, device=x.device)
    at_once = min(max(next_power_of_2(rows), MAX_ROWS), _MOST_IN_PROGRAM)
    grid = strips, shares, cdiv(rows, at_once)
    boxes = _FP8_BOXES if weight.dtype == E4M3 else _BOXES
    weight_boxes = TensorDescriptor(weight, [features, width], [width, 1], [_STRIP, tile], boxes)
    x_boxes = TensorDescriptor(x, [rows, width], [x.stride(0), 1], [at_once, tile], boxes)
    stages = min(_STAGES, _SHARED_BYTES // ((_STRIP + at_once) * _TILE_BYTES))
    gemm_kernel[grid](
        weight_boxes,
        x_boxes,
        out,
        out if x_scales is None else x_scales,
        out if scales is None else scales,
        out if bias is None else bias,
        rows,
        features,
        width // tile,
        STRIP=_STRIP,
        ROWS=at_once,
        TILE=tile,
        STAGES=stages if grid[0] * grid[1] * grid[2] <= _PROGRAMS else stages // 2,
        SCALES=scaling,
        HAS_BIAS=bias is not None,
        num_warps=4,
        maxnreg=_REGISTERS,
        launch_pdl=True,
    )
    return out
