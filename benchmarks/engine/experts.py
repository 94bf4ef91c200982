"""A mixture of experts' kernels against what the machine can do.

    python -m benchmarks.engine.experts [--quick]

The experts of Qwen3-30B-A3B (128 of 768 columns, 8 a token), random, for several numbers of tokens
and in each weight format: the time of routing, ordering, both products, and all of it; the products
as a share of the measured copy bandwidth, by the matrices of the experts that are met, and in
TFLOP/s. `error` is the whole against the reference. On a CPU, or with --quick, the sizes are small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import typer
from torch import Tensor

from benchmarks.engine.ceilings import Ceilings, measured_ceilings, seconds_of
from benchmarks.engine.kernels import replayed_seconds
from benchmarks.record import emit, progress
from kernels.e4m3 import rounded
from kernels.experts import mixture, order, products, route
from kernels.experts.gate import SILU
from kernels.experts.matrices import ExpertMatrix, Scales
from kernels.experts.tiles import tile_for
from kernels.linear import fp8_rows
from kernels.linear.fp8_matrix import BLOCK
from kernels.linear.split_k import whole

FORMATS: tuple[Scales, ...] = ("none", "channel", "block")
COMPARED = (1, 32, 256, 1024)  # numbers of tokens whose error is found


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a layer."""

    experts: int
    top_k: int
    hidden: int
    size: int
    tokens: tuple[int, ...]


LARGE = Sizes(128, 8, 2048, 768, (1, 8, 16, 32, 64, 256, 512, 1024, 2048, 8192))
SMALL = Sizes(8, 2, 256, 128, (1, 32))


@dataclass(frozen=True, slots=True)
class Layer:
    """Its experts' matrices."""

    sizes: Sizes
    gate_up: ExpertMatrix
    down: ExpertMatrix


def main(quick: bool = False) -> None:
    """Print one JSON line for each number of tokens in each format."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    ceilings = measured_ceilings(device, small=small)
    sizes = SMALL if small else LARGE
    for scales in FORMATS:
        progress(f"scales: {scales}")
        layer = drawn(sizes, scales, device)
        for tokens in sizes.tokens:
            if device == "cuda":
                _emit_kernels(layer, scales, tokens, ceilings)
            else:
                _emit_reference(layer, scales, tokens)


def drawn(sizes: Sizes, scales: Scales, device: str) -> Layer:
    """Random matrices in this format."""
    gate_up = _matrix(sizes.experts, 2 * sizes.size, sizes.hidden, scales, device)
    return Layer(sizes, gate_up, _matrix(sizes.experts, sizes.hidden, sizes.size, scales, device))


def _matrix(count: int, rows: int, columns: int, scales: Scales, device: str) -> ExpertMatrix:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    values = torch.randn(count, rows, columns, device=device, dtype=dtype)
    if scales == "none":
        return ExpertMatrix(values * columns**-0.5)
    shape = (rows, 1) if scales == "channel" else (rows // BLOCK, columns // BLOCK)
    found = (torch.rand(count, *shape, device=device) + 0.5) * columns**-0.5 / 100
    return ExpertMatrix(rounded(100 * values), found)


def _inputs(layer: Layer, tokens: int) -> tuple[Tensor, Tensor]:
    device, sizes = layer.down.values.device, layer.sizes
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return (
        torch.randn(tokens, sizes.hidden, device=device, dtype=dtype),
        torch.randn(tokens, sizes.experts, device=device, dtype=dtype),
    )


def _emit_reference(layer: Layer, scales: Scales, tokens: int) -> None:
    x, logits = _inputs(layer, tokens)
    routed = route.reference(logits, layer.sizes.top_k, True)
    call = partial_of(x, routed, layer)
    emit(f"{tokens} tokens, {scales}", all_us=seconds_of(call, "cpu") * 1e6)


def partial_of(x: Tensor, routed: route.Routed, layer: Layer) -> Callable[[], Tensor]:
    """The reference as a call."""
    return lambda: mixture.reference(x, routed, layer.gate_up, layer.down, SILU)


def _emit_kernels(layer: Layer, scales: Scales, tokens: int, ceilings: Ceilings) -> None:
    sizes, (x, logits) = layer.sizes, _inputs(layer, tokens)
    by = mixture.scaling_of(layer.gate_up)
    routed = route.launch(logits, sizes.top_k, True)
    tile = tile_for(routed.experts.numel(), sizes.experts)
    tiles = order.launch(routed.experts, sizes.experts, tile.rows)
    rows = x if by is None else fp8_rows.launch(x, by)
    hidden = products.gated_launch(rows, routed, tiles, tile, layer.gate_up, SILU, x.dtype)
    inner = hidden if by is None else fp8_rows.launch(hidden, by)
    dtype = torch.float32 if tokens <= products.MAX_FLOAT_TOKENS else x.dtype
    gated_s = replayed_seconds(
        lambda: products.gated_launch(rows, routed, tiles, tile, layer.gate_up, SILU, x.dtype)
    )
    down_s = replayed_seconds(
        lambda: products.down_launch(inner, routed, tiles, tile, layer.down, dtype)
    )
    met = len(set(routed.experts.flatten().tolist()))
    read = met * 3 * sizes.hidden * sizes.size * layer.down.values.element_size()
    computed = 2 * tokens * sizes.top_k * 3 * sizes.hidden * sizes.size
    numbers = {"error": _error(x, routed, layer)} if tokens in COMPARED else {}
    emit(
        f"{tokens} tokens, {scales}",
        route_us=replayed_seconds(lambda: route.launch(logits, sizes.top_k, True)) * 1e6,
        order_us=replayed_seconds(lambda: order.launch(routed.experts, sizes.experts, tile.rows))
        * 1e6,
        gated_us=gated_s * 1e6,
        down_us=down_s * 1e6,
        all_us=replayed_seconds(lambda: mixture.launch(x, routed, layer.gate_up, layer.down, SILU))
        * 1e6,
        of_bandwidth=read / (gated_s + down_s) / ceilings.bytes_per_s,
        tflops=computed / (gated_s + down_s) / 1e12,
        **numbers,
    )


def _error(x: Tensor, routed: route.Routed, layer: Layer) -> float:
    got = whole(mixture.launch(x, routed, layer.gate_up, layer.down, SILU), x.dtype).double()
    wanted = mixture.reference(x, routed, layer.gate_up, layer.down, SILU).double()
    return float((got - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    typer.run(main)
