"""Products in fp8 in each form there is, beside the library's, at up to 256 rows.

    python -m benchmarks.engine.fp8_products [--model llama-3.1-8b] [--by-block] [--quick]

Each is timed between its neighbours in a layer: the kernel that quantises its input, and the one
that reads its result and adds its parts. So what is launched early is seen, and what parts cost.
`neighbours_us` is the time of these two alone, `floor_us` the weight at the measured bandwidth of
copies. Launches are replayed from a graph over several weights, none of which stays in the cache.
A form is "rows in a program x shares of K"; `serves` names that of the engine.
`error` is the largest of any form against float32. Needs a Hopper GPU:
elsewhere it says what would be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import typer
from torch import Tensor

from benchmarks.engine.ceilings import Ceilings, measured_ceilings
from benchmarks.record import emit, progress
from kernels.attention import rope_write_kv
from kernels.e4m3 import E4M3
from kernels.experts.gate import SILU
from kernels.launch.capability import HOPPER, capability
from kernels.launch.compile_ahead import compile_ahead
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.linear import fp8_linear, fp8_rows, hopper_linear, linear
from kernels.linear.fp8_matrix import BLOCK, Fp8Matrix
from kernels.linear.fp8_rows import Fp8Rows, Scaling
from kernels.linear.hopper_forms import (
    MAX_FP8_ROWS,
    MIN_ROWS,
    PROCESSORS,
    Form,
    fp8_form,
    strips_of,
)
from kernels.linear.split_k import whole
from kernels.norms import add_rms_norm, gate_mul

HEAD_DIM, KV_HEADS, POSITIONS, EPS = 128, 8, 1024, 1e-5
ROWS = (8, 16, 32, 48, 64, 96, 128, 160, 192, 256)
COLD_BYTES = 160 << 20  # of weights in a graph: three times the L2 cache
REPLAYS = 5
Reader = Callable[[Tensor], object]
Way = Callable[[Fp8Rows, Fp8Matrix], Tensor]


@dataclass(frozen=True, slots=True)
class Product:
    """A weight (features, width), and what reads the product: rotation, gate or norm."""

    name: str
    features: int
    width: int

    @property
    def in_parts(self) -> bool:
        """Whether its reader adds parts."""
        return self.name != "gate and up"


def products_of(query_heads: int, hidden: int, size: int) -> list[Product]:
    """Of a layer."""
    query = query_heads * HEAD_DIM
    return [
        Product("qkv", query + 2 * KV_HEADS * HEAD_DIM, hidden),
        Product("output", hidden, query),
        Product("gate and up", 2 * size, hidden),
        Product("down", hidden, size),
    ]


MODELS = {
    "llama-3.1-8b": products_of(32, 4096, 14_336),
    "llama-3.1-70b": products_of(64, 8192, 28_672),
    "qwen3-8b": products_of(32, 4096, 12_288)[2:],  # the others are as llama-3.1-8b's
}


def main(model: str | None = None, by_block: bool = False, quick: bool = False) -> None:
    """Print one JSON line for each number of rows of each product."""
    chosen = MODELS if model is None else {model: MODELS[model]}
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    all_rows = (8, 128, 256) if quick else ROWS
    if capability(device) != HOPPER:
        _emit_forms(chosen, all_rows)
        return
    ceilings, replays = measured_ceilings("cuda", small=False), Replays()
    for name, products in chosen.items():
        for product in products:
            progress(f"{name} {product.name}")
            bench = Bench(product, device, replays, by_block=by_block)
            compile_ahead(partial(bench.each_once, all_rows))
            for rows in all_rows:
                bench.emit(name, rows, ceilings)
            if product.name == "gate and up" and not by_block:
                _emit_16_bits(name, product, device, replays)


def forms(product: Product, rows: int) -> Iterator[Form]:
    """All that could be meant: rows in a program, shares of K."""
    most = min(max(next_power_of_2(rows), MIN_ROWS), MAX_FP8_ROWS)
    for at_once in (64, most) if rows > 64 else (most,):
        programs = strips_of(product.features) * cdiv(rows, at_once)
        fill = min(8, product.width // BLOCK // 8, PROCESSORS // programs)
        for shares in range(1, (max(fill, 1) if product.in_parts else 1) + 1):
            yield Form(at_once, shares)


def named(form: Form) -> str:
    """Short, as a key of a line."""
    return f"{form.rows}x{form.shares}"


class Replays:
    """Times calls, replayed from graphs that share their memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graphs: list[torch.cuda.CUDAGraph] = []  # the memory is kept as long as one lives

    def seconds(self, call: Callable[[], object]) -> float:
        """The median of a few."""
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool)
            call()
            graph.capture_end()
        torch.cuda.synchronize()
        self._graphs.append(graph)
        graph.replay()
        marks = [_recorded()]
        for _ in range(REPLAYS):
            graph.replay()
            marks.append(_recorded())
        torch.cuda.synchronize()
        times = sorted(float(a.elapsed_time(b)) for a, b in pairwise(marks))
        return times[REPLAYS // 2] / 1e3


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class Bench:
    """A product's weights and its neighbours, for up to the most rows."""

    def __init__(
        self,
        product: Product,
        device: torch.device,
        replays: Replays,
        *,
        by_block: bool,
    ) -> None:
        self._product, self._by_block = product, by_block
        self._replays = replays
        self._by: Scaling = "group" if by_block else "token"
        size = product.features * product.width
        self._weights = [
            _drawn(product, device, by_block=by_block)
            for _ in range(max(cdiv(COLD_BYTES, size), 2))
        ]
        self._x = torch.randn(max(ROWS), product.width, device=device).bfloat16()
        self._residual = torch.randn(max(ROWS), product.features, device=device).bfloat16()
        x = fp8_rows.launch(self._x, self._by).dequantised()
        self._truth = x @ self._weights[0].dequantised().T

    def emit(self, model: str, rows: int, ceilings: Ceilings) -> None:
        """One line: every form, the library, and what serves."""
        product, read, ways = self._product, self._reader(rows), self._ways(rows)
        errors = {name: self._error(rows, way) for name, way in ways.items()}
        times = {f"{name}_us": 1e6 * self._seconds(rows, way, read) for name, way in ways.items()}
        serving = fp8_form(
            rows,
            product.features,
            product.width // BLOCK,
            by_block=self._by_block,
            in_parts=product.in_parts,
        )
        emit(
            f"{model} {product.name}, {rows} rows" + (", by block" if self._by_block else ""),
            serves="library" if serving is None else named(serving),
            best=min(times, key=lambda name: times[name]).removesuffix("_us"),
            **times,
            neighbours_us=1e6 * self._seconds(rows, None, read),
            floor_us=1e6 * product.features * product.width / (ceilings.bytes_per_s),
            error=max(errors.values()),
        )

    def each_once(self, all_rows: tuple[int, ...]) -> None:
        """Launch whatever is timed for these numbers of rows."""
        for rows in all_rows:
            read = self._reader(rows)
            for way in self._ways(rows).values():
                x = fp8_rows.launch(self._x[:rows], self._by)
                read(way(x, self._weights[0]))

    def _ways(self, rows: int) -> dict[str, Way]:
        tried = forms(self._product, rows)
        ways: dict[str, Way] = {named(form): partial(_by_form, form) for form in tried}
        return {**ways, "library": _by_library}

    def _error(self, rows: int, way: Way) -> float:
        x, wanted = fp8_rows.launch(self._x[:rows], self._by), self._truth[:rows]
        got = whole(way(x, self._weights[0]), torch.bfloat16).float()
        return float((got - wanted).norm() / wanted.norm())

    def _seconds(self, rows: int, way: Way | None, read: Reader) -> float:
        """Of one product with its neighbours, or of these alone."""
        before = self._x[:rows]
        alone = self._truth[:rows].bfloat16()

        def call() -> None:
            for weight in self._weights:
                x = fp8_rows.launch(before, self._by)
                read(alone if way is None else way(x, weight))

        return self._replays.seconds(call) / len(self._weights)

    def _reader(self, rows: int) -> Reader:
        if self._product.name == "qkv":
            return _rotation(self._product, rows, self._x.device)
        if self._product.name == "gate and up":
            return lambda product: gate_mul.launch_fp8(product, SILU, self._by)
        residual, weight = self._residual[:rows], self._residual[0].clone()
        return lambda product: add_rms_norm.launch_fp8(product, residual, weight, EPS, self._by)


def _drawn(product: Product, device: torch.device, *, by_block: bool) -> Fp8Matrix:
    shape = product.features, product.width
    values = (torch.randn(shape, device=device, dtype=torch.bfloat16) * 64).to(E4M3)
    sizes = (cdiv(shape[0], BLOCK), shape[1] // BLOCK) if by_block else (shape[0], 1)
    scales = (torch.rand(sizes, device=device) + 0.5) * shape[1] ** -0.5 / 64
    return Fp8Matrix(values, scales, by_block)


def _by_form(form: Form, x: Fp8Rows, weight: Fp8Matrix) -> Tensor:
    return hopper_linear.gemm_fp8(x, weight, None, torch.bfloat16, form)


def _by_library(x: Fp8Rows, weight: Fp8Matrix) -> Tensor:
    return fp8_linear.by_library(x, weight, None, torch.bfloat16)


def _rotation(product: Product, rows: int, device: torch.device) -> Reader:
    table = torch.rand(POSITIONS, HEAD_DIM, device=device)
    slots = torch.arange(rows, device=device)
    shape = (cdiv(rows, 16), 2, KV_HEADS, 16, HEAD_DIM)
    kv = torch.zeros(shape, dtype=torch.bfloat16, device=device)
    heads = product.features // HEAD_DIM - 2 * KV_HEADS
    return lambda qkv: rope_write_kv.launch(
        qkv, slots, table, None, None, EPS, kv, slots, heads, torch.bfloat16
    )


def _emit_16_bits(model: str, product: Product, device: torch.device, replays: Replays) -> None:
    """Of bfloat16, by our kernel and by the library."""
    weights = [
        torch.randn(product.features, product.width, device=device, dtype=torch.bfloat16)
        for _ in range(2)
    ]
    for rows in (1, 8):
        x = torch.randn(rows, product.width, device=device, dtype=torch.bfloat16)
        emit(
            f"{model} gate and up in bfloat16, {rows} rows",
            ours_us=1e6 * replays.seconds(partial(_each_gated, weights, x, hopper_linear.gemm)) / 2,
            library_us=1e6 * replays.seconds(partial(_each_gated, weights, x, _plain)) / 2,
        )


def _plain(x: Tensor, weight: Tensor) -> Tensor:
    return linear.reference(x, weight, None)


def _each_gated(
    weights: list[Tensor], x: Tensor, product: Callable[[Tensor, Tensor], Tensor]
) -> None:
    for weight in weights:
        gate_mul.launch(product(x, weight), SILU)


def _emit_forms(chosen: dict[str, list[Product]], all_rows: tuple[int, ...]) -> None:
    """Without a device: which forms there are, and how many programs each has."""
    for model, products in chosen.items():
        for product in products:
            for rows in all_rows:
                tried = {
                    named(form): form.programs(rows, product.features)
                    for form in forms(product, rows)
                }
                emit(f"{model} {product.name}, {rows} rows", **tried)


if __name__ == "__main__":
    typer.run(main)
