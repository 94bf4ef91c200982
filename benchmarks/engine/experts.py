"""Kernels of mixtures of experts compared with the machine's limits, in each weight format.

    python -m benchmarks.engine.experts [--quick] [--model NAME] [--formats none,mxfp4] [--many]

The experts are random, with the sizes of gpt-oss-20b (32 of 2,880 columns, 4 a token, biases) and
of Qwen3-30B-A3B (128 of 768 columns, 8 a token). A line has the error of the mixture's output
against the reference, and the times of routing, ordering, both products and the whole mixture. A
line also has TFLOP/s, and the bytes a second that products read of the used experts' matrices.
These bytes are also given as a share of the measured copy bandwidth. `LAYERS` layers are measured
in turn, so that a layer's weights are no longer in the L2 cache when it is measured again. A table
of all lines follows at the end.

`--many` times both products for many tokens instead. The benchmark then compares four-bit matrices
that are unpacked before each product, four-bit matrices that are unpacked during it, and plain
matrices. On a CPU, or with --quick, sizes are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import typer
from torch import Tensor

from benchmarks.engine.ceilings import Ceilings, measured_ceilings, seconds_of
from benchmarks.engine.kernels import replayed_seconds
from benchmarks.record import emit, progress
from kernels.e4m3 import rounded
from kernels.experts import hopper_four_bit, mixture, order, products, route
from kernels.experts.four_bit_matrices import FourBitMatrix, Kind, int4_scales, shapes
from kernels.experts.matrices import AnyMatrix, ExpertMatrix
from kernels.experts.tiles import FOUR_BIT_MANY, FOUR_BIT_OVERLAPPED, MixtureTiles
from kernels.launch.compile_ahead import compile_ahead
from kernels.linear import fp8_rows
from kernels.linear.fp8_matrix import BLOCK
from kernels.linear.split_k import whole
from kernels.norms.gate import SILU, Gate

FORMATS = ("none", "channel", "block", "mxfp4", "int4")
FOUR_BITS = ("mxfp4", "int4")
COMPARED = (1, 64, 256, 2048)  # numbers of tokens at which errors are measured
LAYERS = 4
REP_MS = 15  # duration of each of a graph's ten replays, in milliseconds
MXFP4_GROUP, INT4_GROUP = 32, 128  # number of columns that share a scale
PRODUCTS = ("gated_us", "down_us", "all_us")
# the timed parts; the first two take equal time in all formats
ALL_PARTS = ("route_us", "order_us", *PRODUCTS)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a mixture layer."""

    experts: int
    top_k: int
    hidden: int
    size: int
    tokens: tuple[int, ...]
    gate: Gate = SILU
    bias: bool = False

    @property
    def numbers(self) -> int:
        """The number of weights of an expert."""
        return 3 * self.hidden * self.size


TOKENS = (1, 8, 32, 64, 128, 256, 2048, 8192)
MODELS = {
    "gpt-oss-20b": Sizes(32, 4, 2880, 2880, TOKENS, Gate(7.0, 1.702), bias=True),
    "qwen3-30b-a3b": Sizes(128, 8, 2048, 768, TOKENS),
}
SMALL = {"small": Sizes(8, 2, 256, 128, (1, 32))}


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixture layer: the matrices of its experts."""

    sizes: Sizes
    gate_up: AnyMatrix
    down: AnyMatrix


def main(quick: bool = False, model: str = "", formats: str = "", many: bool = False) -> None:
    """Print a JSON line for each token count and format, and a table at the end."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = quick or device == "cpu"
    ceilings = measured_ceilings(device, small=small)
    emit("ceilings", tb_per_s=ceilings.bytes_per_s / 1e12, tflops=ceilings.flops / 1e12)
    table: list[str] = []
    for name, sizes in (SMALL if small else MODELS).items():
        if not name.startswith(model):
            continue
        usual = ("none", *FOUR_BITS) if many else FORMATS
        for weights in formats.split(",") if formats else usual:
            if weights == "block" and sizes.hidden % BLOCK:
                continue
            progress(f"{name}, {weights}")
            if device == "cpu":
                _emit_reference(drawn(sizes, weights, device), weights)
                continue
            layers = [drawn(sizes, weights, device) for _ in range(LAYERS)]
            each = _many_of if many else _kernels_of
            table += [f"{name:14} {line}" for line in each(layers, weights, ceilings)]
    for line in table:
        progress(line)


def drawn(sizes: Sizes, weights: str, device: str) -> Layer:
    """Draw random matrices in this weight format."""
    gate_up = _matrix(sizes, 2 * sizes.size, sizes.hidden, weights, device)
    return Layer(sizes, gate_up, _matrix(sizes, sizes.hidden, sizes.size, weights, device))


def _matrix(sizes: Sizes, rows: int, columns: int, weights: str, device: str) -> AnyMatrix:
    count = sizes.experts
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    bias = torch.randn(count, rows, device=device, dtype=dtype) / 50 if sizes.bias else None
    if weights in FOUR_BITS:
        return _in_four_bits(count, rows, columns, weights, dtype, bias)
    values = torch.randn(count, rows, columns, device=device, dtype=dtype)
    if weights == "none":
        return ExpertMatrix(values * columns**-0.5, None, bias)
    shape = (rows, 1) if weights == "channel" else (rows // BLOCK, columns // BLOCK)
    found = (torch.rand(count, *shape, device=device) + 0.5) * columns**-0.5 / 100
    return ExpertMatrix(rounded(100 * values), found, bias)


def _in_four_bits(
    count: int, rows: int, columns: int, weights: str, dtype: torch.dtype, bias: Tensor | None
) -> FourBitMatrix:
    device = "cuda" if dtype == torch.bfloat16 else "cpu"
    kind: Kind = "mxfp4" if weights == "mxfp4" else "int4"
    group = MXFP4_GROUP if kind == "mxfp4" else INT4_GROUP
    of_values, of_scales = shapes(kind, count, rows, columns, group)
    values = torch.randint(-(1 << 15), 1 << 15, of_values, device=device, dtype=torch.int16)
    # scales of 2^-8 and 2^-7, close to columns^-0.5, the scale of the other formats
    if kind == "mxfp4":
        scales = torch.randint(119, 121, (*of_scales, 4), device=device, dtype=torch.uint8)
        return FourBitMatrix(
            kind, columns, group, dtype, values, scales.view(torch.int32)[..., 0], bias
        )
    steps = (torch.rand(of_scales, device=device) + 0.5) * columns**-0.5 / 4.6
    zeros = torch.randint(6, 10, of_scales, device=device, dtype=torch.int32)
    return FourBitMatrix(
        kind, columns, group, dtype, values, int4_scales(steps.to(dtype), zeros), bias
    )


def _inputs(layer: Layer, tokens: int) -> tuple[Tensor, Tensor]:
    device, sizes = layer.down.values.device, layer.sizes
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return (
        torch.randn(tokens, sizes.hidden, device=device, dtype=dtype),
        torch.randn(tokens, sizes.experts, device=device, dtype=dtype),
    )


def _emit_reference(layer: Layer, weights: str) -> None:
    for tokens in layer.sizes.tokens:
        x, logits = _inputs(layer, tokens)
        routed = route.reference(logits, layer.sizes.top_k, True)
        took = seconds_of(_reference_of(x, routed, layer), "cpu")
        emit(f"{tokens} tokens, {weights}", all_us=took * 1e6)


def _reference_of(x: Tensor, routed: route.Routed, layer: Layer) -> Callable[[], Tensor]:
    return lambda: mixture.reference(x, routed, layer.gate_up, layer.down, layer.sizes.gate)


@dataclass(frozen=True, slots=True)
class Steps:
    """The timed parts of a mixture's computation. Each part is timed over all layers in turn."""

    layers: Sequence[Layer]
    x: Tensor
    logits: Tensor
    tiles: MixtureTiles

    @property
    def routed(self) -> route.Routed:
        """Choose the experts of all tokens."""
        return route.launch(self.logits, self.layers[0].sizes.top_k, True)

    def parts(self) -> dict[str, Callable[[Layer], object]]:
        """Map the name of each part to the function that computes it for a layer."""
        first, sizes, x = self.layers[0], self.layers[0].sizes, self.x
        by, routed = mixture.scaling_of(first.gate_up), self.routed
        tiles = order.launch(routed.experts, sizes.experts, self.tiles.rows)
        rows = x if by is None else fp8_rows.launch(x, by)
        few = x.shape[0] <= products.MAX_FLOAT_TOKENS
        dtype = torch.float32 if few else x.dtype

        def gated(layer: Layer) -> Tensor:
            return products.gated_launch(
                rows, routed, tiles, self.tiles.gated, layer.gate_up, sizes.gate, x.dtype
            )

        hidden = gated(first)
        inner = hidden if by is None else fp8_rows.launch(hidden, by)
        return {
            "route_us": lambda _: self.routed,
            "order_us": lambda _: order.launch(routed.experts, sizes.experts, self.tiles.rows),
            "gated_us": gated,
            "down_us": lambda one: products.down_launch(
                inner, routed, tiles, self.tiles.down, one.down, dtype
            ),
            "all_us": lambda one: mixture.launch(x, routed, one.gate_up, one.down, sizes.gate),
        }

    def microseconds(self, part: Callable[[Layer], object]) -> float:
        """Measure a part of a layer, in microseconds."""
        took = replayed_seconds(lambda: [part(one) for one in self.layers], REP_MS)
        return took / len(self.layers) * 1e6

    def products(self) -> list[Tensor]:
        """Compute both GEMMs of the first layer. `down` reads the gated outputs of `up`."""
        parts = self.parts()
        results = [parts[name](self.layers[0]) for name in ("gated_us", "down_us")]
        return [one for one in results if isinstance(one, Tensor)]

    def read(self) -> int:
        """Count the bytes of the matrices of the experts in use."""
        met = len(set(self.routed.experts.flatten().tolist()))
        layer = self.layers[0]
        kept = (layer.gate_up.values, layer.down.values, layer.gate_up.scales, layer.down.scales)
        whole_layer = sum(one.numel() * one.element_size() for one in kept if one is not None)
        return whole_layer * met // layer.sizes.experts


def _kernels_of(layers: Sequence[Layer], weights: str, ceilings: Ceilings) -> Iterator[str]:
    sizes = layers[0].sizes
    every = []
    for tokens in sizes.tokens:
        tiles = mixture.tiles_of(layers[0].gate_up, tokens * sizes.top_k)
        every.append((tokens, Steps(layers, *_inputs(layers[0], tokens), tiles)))
    compile_ahead(lambda: [part(layers[0]) for _, one in every for part in one.parts().values()])
    for tokens, steps in every:
        error = _error(steps) if tokens in COMPARED else None
        timed = ALL_PARTS if weights == "none" else PRODUCTS
        took = {name: steps.microseconds(steps.parts()[name]) for name in timed}
        products_s = (took["gated_us"] + took["down_us"]) / 1e6
        speed = steps.read() / products_s
        emit(
            f"{tokens} tokens, {weights}",
            **took,
            tb_per_s=speed / 1e12,
            of_bandwidth=speed / ceilings.bytes_per_s,
            tflops=2 * tokens * sizes.top_k * sizes.numbers / products_s / 1e12,
            **({} if error is None else {"error": error}),
        )
        gated, down = took["gated_us"], took["down_us"]
        yield (
            f"{weights:8}{tokens:6} tokens {took['all_us']:9.1f} us, gated {gated:9.1f}, "
            f"down {down:9.1f}, {speed / 1e12:5.2f} TB/s"
            + ("" if error is None else f", error {error:.1e}")
        )


def _error(steps: Steps) -> float:
    layer, x, routed = steps.layers[0], steps.x, steps.routed
    gate = layer.sizes.gate
    got = whole(mixture.launch(x, routed, layer.gate_up, layer.down, gate), x.dtype).double()
    wanted = mixture.reference(x, routed, layer.gate_up, layer.down, gate).double()
    return float((got - wanted).norm() / wanted.norm())


MANY_TOKENS = (2048, 4096, 8192)


def _many_of(layers: Sequence[Layer], weights: str, _: Ceilings) -> Iterator[str]:
    sizes, matrix = layers[0].sizes, layers[0].gate_up
    for tokens in MANY_TOKENS:
        x, logits = _inputs(layers[0], tokens)
        ways = {"as served": mixture.tiles_of(matrix, tokens * sizes.top_k)}
        if isinstance(matrix, FourBitMatrix):
            ways = {"one after the other": FOUR_BIT_MANY}
            ways |= {"overlapped": FOUR_BIT_OVERLAPPED} if hopper_four_bit.serves(matrix) else {}
        first: list[Tensor] = []
        for way, of in ways.items():
            steps = Steps(layers, x, logits, of)
            parts, results = steps.parts(), steps.products()
            same = not first or all(map(torch.equal, results, first))
            first = first or results
            took = {name: steps.microseconds(parts[name]) for name in ("gated_us", "down_us")}
            seconds = sum(took.values()) / 1e6
            tflops = 2 * tokens * sizes.top_k * sizes.numbers / seconds / 1e12
            emit(f"{tokens} tokens, {weights}, {way}", **took, tflops=tflops, same_bits=same)
            yield (
                f"{weights:8}{tokens:6} tokens {way:20} gated {took['gated_us']:9.1f} us, "
                f"down {took['down_us']:9.1f}, {tflops:4.0f} TFLOP/s, same bits: {same}"
            )


if __name__ == "__main__":
    typer.run(main)
