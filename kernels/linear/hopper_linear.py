"""A Hopper GEMM for few rows of x, which starts to read the weight before x is written.

With up to 8 rows of x, y = x @ weight.T takes as long as reading the weight. Usually the memory is
idle while a kernel waits for the previous kernel. With TMA copies and PDL (`dependent_launch`),
this kernel reads the weight without waiting:

    before   | norm, attention ... |
    producer | weight tiles until shared memory is full ... | tiles of x | weight and x ...
    halves                         (wait)                   | multiply full tiles, free them ...

With several shares of K the result is split-K partials (`split_k`), which are not added here. The
kernel supports up to 8 rows of 16-bit numbers, and up to 128 rows of fp8 with scales. It runs only
on compute capability 9.0, and not in Triton's interpreter.

Elsewhere: the GEMM's device code (`hopper_gemm`), how the GEMM is divided among programs
(`hopper_tile_configs`), and when it is faster than the alternatives (`linear`, `fp8_linear`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.e4m3 import E4M3
from kernels.launch.capability import HOPPER, capability
from kernels.launch.rounding import cdiv
from kernels.linear.fp8_matrix import Fp8Matrix
from kernels.linear.fp8_rows import Fp8Rows
from kernels.linear.hopper_gemm import gemm_kernel
from kernels.linear.hopper_tile_configs import (
    MIN_ROWS,
    STRIP,
    TileConfig,
    fp8_config,
    plain_config,
    programs_for,
    strips_of,
)

MAX_ROWS = MIN_ROWS  # maximum number of rows of 16-bit numbers
_TILE_BYTES = 128  # bytes of a tile's row: the width of the swizzle in shared memory
_BOXES = gl.NVMMASharedLayout(128, 16, rank=2)
_FP8_BOXES = gl.NVMMASharedLayout(128, 8, rank=2)
_PLAIN, _BY_CHANNEL, _BY_BLOCK = 0, 1, 2


def serves(x: Tensor, weight: Tensor) -> bool:
    """Return whether `gemm` supports x (T, K) by weight (N, K)."""
    rows, width = x.shape
    return (
        0 < rows <= MAX_ROWS
        and capability(x.device) == HOPPER
        and x.dtype == weight.dtype
        and x.dtype.itemsize == 2
        and width % tile_of(weight) == 0
        and x.stride(0) % 8 == 0  # TMA needs strides that are multiples of 16 bytes
    )


def fp8_config_for(x: Fp8Rows, weight: Fp8Matrix, *, in_parts: bool) -> TileConfig | None:
    """Choose the config of `gemm_fp8` for x (T, K) by weight (N, K), or None if unsupported."""
    (rows, width), tile = x.values.shape, tile_of(weight.values)
    if capability(x.values.device) != HOPPER or width % tile:
        return None
    features, by_block = weight.values.shape[0], weight.by_block
    return fp8_config(rows, features, width // tile, by_block=by_block, in_parts=in_parts)


def tile_of(weight: Tensor) -> int:
    """Return the number of columns of a tile."""
    return _TILE_BYTES // weight.dtype.itemsize


def config_for(weight: Tensor) -> TileConfig:
    """Choose the config of a GEMM of few rows by weight (N, K). The number of rows is ignored."""
    features, width = weight.shape
    return plain_config(features, width // tile_of(weight))


def gemm(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply x (T, K), rows contiguous, by contiguous weight (N, K) -> (T, N) or parts."""
    return _launch(x, weight, config_for(weight), x.dtype, None, None, None, _PLAIN)


def gemm_fp8(
    x: Fp8Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype, config: TileConfig
) -> Tensor:
    """Multiply fp8 x by weight like `gemm` -> (T, N) of `dtype`, or parts (S, T, N) float32."""
    scales = _BY_BLOCK if weight.by_block else _BY_CHANNEL
    return _launch(x.values, weight.values, config, dtype, x.scales, weight.scales, bias, scales)


def _launch(
    x: Tensor,
    weight: Tensor,
    config: TileConfig,
    dtype: torch.dtype,
    x_scales: Tensor | None,
    scales: Tensor | None,
    bias: Tensor | None,
    scaling: int,
) -> Tensor:
    (rows, width), features = x.shape, weight.shape[0]
    strips, tile = strips_of(features), tile_of(weight)
    if config.shares == 1:
        out = torch.empty((rows, features), dtype=dtype, device=x.device)
    else:
        out = torch.empty((config.shares, rows, features), dtype=torch.float32, device=x.device)
    programs = programs_for(strips, rows, is_fp8=scaling != _PLAIN)
    at_launch, of_consumer = config.registers(by_block=scaling == _BY_BLOCK)
    boxes = _FP8_BOXES if weight.dtype == E4M3 else _BOXES
    weight_boxes = TensorDescriptor(weight, [features, width], [width, 1], [STRIP, tile], boxes)
    x_boxes = TensorDescriptor(x, [rows, width], [x.stride(0), 1], [config.rows, tile], boxes)
    gemm_kernel[(programs, config.shares, cdiv(rows, config.rows))](
        weight_boxes,
        x_boxes,
        out,
        out if x_scales is None else x_scales,
        out if scales is None else scales,
        out if bias is None else bias,
        rows,
        features,
        width // tile,
        STRIP=STRIP,
        ROWS=config.rows,
        TILE=tile,
        STAGES=config.stages,
        SCALES=scaling,
        HAS_BIAS=bias is not None,
        REGISTERS=of_consumer,
        SEVERAL=programs < strips,
        num_warps=4,
        maxnreg=at_launch,
        launch_pdl=True,
    )
    return out
