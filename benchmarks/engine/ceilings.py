"""The machine's limits: bytes a second of a copy, operations a second of GEMMs.

The limits are measured, not read from a data sheet. Other benchmarks compare with them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.e4m3 import E4M3
from kernels.launch.capability import HOPPER, capability
from kernels.linear import fp8_linear
from kernels.linear.fp8_matrix import Fp8Matrix
from kernels.linear.fp8_rows import Fp8Rows


@dataclass(frozen=True, slots=True)
class Ceilings:
    """A device's rates a second: bytes read and written, multiplications and additions."""

    bytes_per_s: float
    flops: float
    fp8_flops: float  # rate of an fp8 GEMM; equal to `flops` if the device has none


def seconds_of(call: Callable[[], object], device: str, repeats: int = 7) -> float:
    """Measure the median seconds of a call, including the wait for the device."""
    times = []
    for _ in range(repeats + 1):
        before = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - before)
    return statistics.median(times[1:])


def measured_ceilings(device: str, *, small: bool) -> Ceilings:
    """Measure a copy of 2 GiB and GEMMs of 8,192 by 8,192 in bfloat16 and in fp8.

    With `small` the sizes are smaller. On a CPU both GEMMs are in float32.
    """
    numbers, side = (2**22, 256) if small else (2**30, 8192)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    source = torch.ones(numbers, dtype=dtype, device=device)
    target = torch.empty_like(source)
    copy_s = seconds_of(lambda: target.copy_(source), device)
    a = torch.ones((side, side), dtype=dtype, device=device)
    product_s = seconds_of(lambda: a @ a, device)
    has_fp8 = device == "cuda" and capability(a.device) == HOPPER
    return Ceilings(
        2 * source.numel() * source.itemsize / copy_s,
        2 * side**3 / product_s,
        2 * side**3 / (_fp8_product_s(a, device) if has_fp8 else product_s),
    )


def _fp8_product_s(a: Tensor, device: str) -> float:
    values, scales = a.to(E4M3), torch.ones((len(a), 1), device=device)
    x, weight = Fp8Rows(values, scales), Fp8Matrix(values, scales, by_block=False)
    return seconds_of(lambda: fp8_linear.by_library(x, weight, None, torch.bfloat16), device)
