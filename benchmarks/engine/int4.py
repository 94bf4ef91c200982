"""Products with matrices of 4-bit integers, by both ways there are, beside plain ones.

    python -m benchmarks.engine.int4 [--quick]

The matrices of Llama 3.1 8B's layers, random, in groups of 128 with zero points, for several
numbers of rows: the time of the kernel that dequantises in registers (which serves few rows), of
writing the matrix out and multiplying that (which serves many), and of the plain product; the
kernel's share of the measured copy bandwidth, by the bytes of integers, scales and zero points.
`error` is that of the way that serves against float64. On a CPU, or with --quick, sizes are small,
and only what serves is timed.
"""

from __future__ import annotations

from functools import partial

import torch
import typer
from torch import Tensor

from benchmarks.engine.ceilings import Ceilings, measured_ceilings, seconds_of
from benchmarks.engine.kernels import replayed_seconds
from benchmarks.record import emit, progress
from kernels.linear import int4_linear, linear
from kernels.linear.int4_matrix import Int4Matrix, packed
from kernels.linear.split_k import whole
from kernels.ops import ops_for

GROUP = 128
MATRICES = {"qkv": (6144, 4096), "output": (4096, 4096), "gate and up": (28_672, 4096),
            "down": (4096, 14_336)}  # fmt: skip
ROWS = (1, 8, 16, 32, 64, 96, 128, 192, 256, 512, 2048)
IN_REGISTERS = 512  # the most rows that are computed so, beyond those that it serves
SMALL_MATRICES, SMALL_ROWS = {"small": (256, 256)}, (1, 200)


def main(quick: bool = False) -> None:
    """Print one JSON line for each number of rows of each matrix."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    ceilings = measured_ceilings(device, small=small)
    for name, (features, width) in (SMALL_MATRICES if small else MATRICES).items():
        progress(name)
        weight = drawn(features, width, device)
        for rows in SMALL_ROWS if small else ROWS:
            x = torch.randn(rows, width, device=device).to(weight.scales.dtype)
            if device == "cuda":
                _emit_ways(name, x, weight, ceilings)
            else:
                took = seconds_of(partial(_served, x, weight), device)
                emit(f"{name}, {rows} rows", us=took * 1e6, error=_error(x, weight))


def drawn(features: int, width: int, device: str) -> Int4Matrix:
    """A random matrix."""
    dtype, groups = torch.bfloat16 if device == "cuda" else torch.float32, width // GROUP
    integers = torch.randint(16, (features, width), device=device, dtype=torch.uint8)
    zeros = torch.randint(6, 10, (groups, features), device=device, dtype=torch.uint8)
    scales = (torch.rand(groups, features, device=device) + 0.5) * width**-0.5 / 4.6
    return Int4Matrix(packed(integers), scales.to(dtype), zeros)


def _emit_ways(name: str, x: Tensor, weight: Int4Matrix, ceilings: Ceilings) -> None:
    rows, plain = x.shape[0], weight.dequantised(x.dtype)
    shares = int4_linear.shares_of(weight)
    kept = (weight.values, weight.scales, weight.zeros)
    read = sum(one.numel() * one.element_size() for one in kept if one is not None)
    times = {}
    if rows <= IN_REGISTERS:
        took = replayed_seconds(lambda: int4_linear.in_registers(x, weight, None, shares=shares))
        times = {"registers_us": took * 1e6, "of_bandwidth": read / took / ceilings.bytes_per_s}
    emit(
        f"{name}, {rows} rows",
        **times,
        written_out_us=replayed_seconds(
            lambda: linear.launch_split_k(x, int4_linear.written_out(weight, x.dtype), None)
        )
        * 1e6,
        plain_us=replayed_seconds(lambda: linear.launch_split_k(x, plain, None)) * 1e6,
        error=_error(x, weight),
    )


def _served(x: Tensor, weight: Int4Matrix) -> Tensor:
    return whole(ops_for(x.device).linear_int4_split_k(x, weight, None), x.dtype)


def _error(x: Tensor, weight: Int4Matrix) -> float:
    wanted = x.double() @ weight.dequantised(x.dtype).double().T
    return float((_served(x, weight).double() - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    typer.run(main)
