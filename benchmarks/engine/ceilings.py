"""The machine's limits: bytes a second of a copy, operations a second of a matrix product.

They are measured, not read from a data sheet; other benchmarks compare with them. Knows torch; does
not know models.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes read and written, and multiplications and additions, a second."""

    bytes_per_s: float
    flops: float


def seconds_of(call: Callable[[], object], device: str, repeats: int = 7) -> float:
    """Median seconds of a call, including the wait for the device."""
    times = []
    for _ in range(repeats + 1):
        before = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - before)
    return statistics.median(times[1:])


def measured_ceilings(device: str, *, small: bool) -> Ceilings:
    """Of a copy of 2 GiB and a product of 8,192 by 8,192 in bfloat16; small: less, in float32."""
    numbers, side = (2**22, 256) if small else (2**30, 8192)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    source = torch.ones(numbers, dtype=dtype, device=device)
    target = torch.empty_like(source)
    copy_s = seconds_of(lambda: target.copy_(source), device)
    a = torch.ones((side, side), dtype=dtype, device=device)
    product_s = seconds_of(lambda: a @ a, device)
    return Ceilings(2 * source.numel() * source.itemsize / copy_s, 2 * side**3 / product_s)
