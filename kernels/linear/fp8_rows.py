"""The activations in fp8 (e4m3): rows of numbers, and their scales.

    by "token"    one scale per row            scale = max(largest / 448, 1 / (448 * 512))
    by "group"    one scale per 128 columns    scale = max(largest, 1e-10) / 448
    static        one scale for all rows, from the model files

    values = round(x * (1 / scale)) to e4m3, at most 448 in size   x = about values * scale

The scales are those of vLLM (`dynamic_per_token_scaled_fp8_quant`, `per_token_group_quant_fp8`). x
is multiplied by the scale's reciprocal, because divisions would be slow. A number very near the
middle between two e4m3 numbers may therefore be rounded to the farther one. A row's values do not
depend on other rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.e4m3 import E4M3, LARGEST, fits, rounded, to_e4m3
from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import next_power_of_2
from kernels.launch.row_warps import row_warps

GROUP = 128  # columns that share a scale
LEAST_TOKEN_SCALE = 1.0 / (LARGEST * 512.0)
LEAST_OF_GROUP = 1e-10
MOST_WARPS = 32  # maximum number of warps of a program that computes a row

Scaling = Literal["token", "group"]


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """The rows: `values` (T, K) e4m3, `scales` float32 (T, 1), or (T, K / 128) for groups."""

    values: Tensor
    scales: Tensor

    def dequantised(self) -> Tensor:
        """Dequantise to (T, K) float32."""
        rows, width = self.values.shape
        groups = self.scales.shape[1]
        wide = self.values.float().view(rows, groups, width // groups)
        return (wide * self.scales[:, :, None]).view(rows, width)


def reference(x: Tensor | Fp8Rows, by: Scaling, static: Tensor | None = None) -> Fp8Rows:
    """Quantise x (T, K) -> values and scales, or return x if it is fp8 already.

    Plain PyTorch. `static` (1,) float32 is the scale of all rows. With groups, K must be a multiple
    of 128.
    """
    if isinstance(x, Fp8Rows):
        return x
    (rows, width), wide = x.shape, x.float()
    groups = wide.view(rows, width // GROUP, GROUP) if by == "group" else wide[:, None]
    found = _scales(groups.abs().amax(-1), by) if static is None else static.expand(rows, 1)
    scales = found.contiguous()
    values = rounded(groups * scales.reciprocal()[:, :, None])
    return Fp8Rows(values.view(rows, width), scales)


def _scales(largest: Tensor, by: Scaling) -> Tensor:
    if by == "token":
        return fits(largest).clamp(min=LEAST_TOKEN_SCALE)
    return fits(largest.clamp(min=LEAST_OF_GROUP))


@triton.jit
def store_scaled(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """Quantise x (1, PADDED) float32: a row's columns from `first` on, 0 beyond WIDTH.

    With GROUP 0, x is the complete row, and has one scale. Writes the part of these columns in row
    `row` of `values` (T, WIDTH) and `scales` (T, WIDTH / GROUP or 1).
    """
    SIZE: tl.constexpr = GROUP if GROUP else PADDED
    NUM: tl.constexpr = PADDED // SIZE
    grouped = tl.reshape(x, [NUM, SIZE])
    largest = tl.max(tl.abs(grouped), axis=1)
    if GROUP:
        scale = tl.div_rn(tl.maximum(largest, 1e-10), 448.0)
    else:
        scale = tl.maximum(tl.div_rn(largest, 448.0), 1.0 / (448.0 * 512.0))
    inverse = tl.div_rn(tl.full([NUM], 1.0, tl.float32), scale)[:, None]
    column = first + tl.arange(0, NUM)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    # A thread stores the 8 numbers that it loaded. With 16, numbers would move between threads.
    goal = values + tl.max_contiguous(row * WIDTH + column, [1, 8])
    tl.store(goal, to_e4m3(grouped, inverse), mask=column < WIDTH)
    REAL: tl.constexpr = WIDTH // SIZE if GROUP else 1
    group = first // SIZE + tl.arange(0, NUM)
    tl.store(scales + row * REAL + group, scale, mask=group < REAL)


@triton.jit
def _fp8_rows_kernel(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    static: tl.tensor,
    x_stride: tl.tensor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    STATIC: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    wide = tl.load(x + row * x_stride + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    if STATIC:
        scale = tl.load(static)
        kept = to_e4m3(wide, tl.div_rn(1.0, scale))
        tl.store(values + row * WIDTH + column, kept, mask=column < WIDTH)
        tl.store(scales + row, scale)
    else:
        store_scaled(wide, values, scales, row, 0, WIDTH, PADDED, GROUP)


def launch(x: Tensor | Fp8Rows, by: Scaling, static: Tensor | None = None) -> Fp8Rows:
    """Compute `reference` on the device. Rows must be contiguous, with any row stride."""
    if isinstance(x, Fp8Rows):
        return x
    rows, width = x.shape
    made = empty_rows(rows, width, by, x.device)
    if rows:
        padded = next_power_of_2(width)
        _fp8_rows_kernel[(rows,)](
            x,
            made.values,
            made.scales,
            made.scales if static is None else static,
            x.stride(0),
            WIDTH=width,
            PADDED=padded,
            GROUP=group_of(by),
            STATIC=static is not None,
            num_warps=row_warps(padded, MOST_WARPS),
            **dependent_launch(x.device),
        )
    return made


def empty_rows(rows: int, width: int, by: Scaling, device: torch.device) -> Fp8Rows:
    """Allocate uninitialised rows for a kernel that ends with `store_scaled`."""
    values = torch.empty((rows, width), dtype=E4M3, device=device)
    scales = torch.empty(
        (rows, width // GROUP if by == "group" else 1), dtype=torch.float32, device=device
    )
    return Fp8Rows(values, scales)


def group_of(by: Scaling) -> int:
    """Return the constant GROUP for `store_scaled`."""
    return GROUP if by == "group" else 0
