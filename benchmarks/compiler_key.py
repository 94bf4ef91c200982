"""Seconds until threads that look for compiled kernels have the key that these are found by.

`python -m benchmarks.compiler_key`: Triton's key covers its own library; a process makes it once,
but threads that want it at the same time make one each. Every number of threads is measured in a
process of its own.

Knows: Triton's function. Does not know: kernels, or a device.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Annotated

import typer
from triton.runtime.cache import triton_key

from benchmarks.record import emit


def seconds(threads: int) -> float:
    """Until the last of them has it; to be called once in a process."""
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        for made in [pool.submit(triton_key) for _ in range(threads)]:
            made.result()
        return time.perf_counter() - began


def main(
    threads: Annotated[list[int] | None, typer.Option(min=1, help="Threads that want it.")] = None,
) -> None:
    """Print one JSON line a number of threads."""
    for count in threads or (1, 8):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            taken = process.submit(seconds, count).result()
        emit(f"{count} threads", seconds=taken)


if __name__ == "__main__":
    typer.run(main)
