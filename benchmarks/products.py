"""How long the four matrix products of a layer take, by the number of rows.

    python -m benchmarks.products [--rows 64 --rows 448] [--quick]

The shapes are an 8B's. A line has the microseconds with cuBLAS and with cuBLASLt, the two
interfaces of the library, and with what the engine uses (`us`); `rows_us` is the engine's time of
all four products, divided by the rows: where it rises with the rows, CUDA graphs for more tokens
are better. Launches are replayed from a graph, with weights that are not in the L2 cache. On a
CPU, or with --quick, only what the engine uses is measured, with small shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from benchmarks.attention import seconds as replayed_seconds
from benchmarks.ceilings import seconds_of
from benchmarks.record import emit
from kernels.linear import Linear, asking
from kernels.ops import ops_for

SHAPES = {
    "qkv": (6144, 4096),
    "output": (4096, 4096),
    "gate_up": (28_672, 4096),
    "down": (4096, 14_336),
}
SMALL_SHAPES = {"qkv": (192, 64), "down": (64, 256)}
ROWS = (1, 8, 16, 32, *range(40, 129, 8), 192, 256, 320, 384, 448, 512, 576, 640, 768, 832, 1024)
COLD_BYTES = 2**30  # of weights that take turns
FRONTS = ("cublas", "cublaslt")


def main(
    rows: Annotated[list[int] | None, typer.Option(min=1)] = None, quick: bool = False
) -> None:
    """Print one JSON line a number of rows."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    serving = ops_for(torch.device(device)).linear_in_parts
    for count in rows or ((1, 8) if small else ROWS):
        all_us = 0.0
        for name, (features, width) in (SMALL_SHAPES if small else SHAPES).items():
            weights = cold_weights(features, width, device, 2**20 if small else COLD_BYTES)
            x = torch.randn(count, width, device=device).to(weights[0].dtype)
            took = {"us": _each_us(serving, x, weights)}
            if not small:
                took |= {f"{front}_us": _by_front(front, x, weights) for front in FRONTS}
            all_us += took["us"]
            emit(f"{name} of {count} rows", **took)
        emit(f"a layer of {count} rows", us=all_us, rows_us=all_us / count)


def cold_weights(features: int, width: int, device: str, size: int) -> list[Tensor]:
    """Weights of `size` bytes together, four at least: taking turns, none is in the L2 cache."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    count = max(size // (features * width * dtype.itemsize), 4)
    return [torch.randn(features, width, device=device).to(dtype) / 64 for _ in range(count)]


def _by_front(front: str, x: Tensor, weights: list[Tensor]) -> float:
    with asking(front):
        return _each_us(F.linear, x, weights)


def _each_us(linear: Linear | Callable[..., Tensor], x: Tensor, weights: list[Tensor]) -> float:
    def all_of_them() -> None:
        for weight in weights:
            linear(x, weight, None)

    took = replayed_seconds(all_of_them) if x.is_cuda else seconds_of(all_of_them, "cpu")
    return 1e6 * took / len(weights)


if __name__ == "__main__":
    typer.run(main)
