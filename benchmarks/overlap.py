"""Time to load a prefix from host memory and compute the tokens behind it, in three ways.

    python -m benchmarks.overlap --model llama-3.1-8b [--tokens 16000] [--new 64] [--quick]

The ways: all copies first and then the step, as the engine does it; the step launched at once, in
which each group of layers waits only for its own part of every block; and the first tokens of the
prefix computed while the others are loaded. Each is given in ms from the first copy until the
step's tokens are on the host. Weights are random.

Knows: the runner, its decoder, CUDA streams. Does not know: the cache, the scheduler or HTTP.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.record import emit, progress
from benchmarks.shapes import model_directory
from benchmarks.step import Shape, rows_of
from engine.config import EngineConfig
from engine.graphs.runner import GraphRunner
from engine.loading import OpenedModel, open_model
from engine.runner import ModelRunner
from engine.step import Runner, Step
from kernels.batch_layout import BatchLayout
from kernels.ops import PagedAttention
from prefix_cache.cache import PrefixCache

REPEATS = 9
GROUPS = (2, 4, 8)
HEADS = (512, 1_024, 2_048)  # tokens computed while the others are loaded

EVERY = slice(None)

Gate = Callable[[], None]  # lets what is launched next wait for copies


class Part(NamedTuple):
    """What is copied with one gate."""

    targets: list[Tensor]
    sources: list[Tensor]


class Lane:
    """Copies from host to device, on a CUDA stream of their own; plain copies on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def copy(self, part: Part) -> Gate:
        """Begin to copy; the gate opens when all has arrived."""
        if self._stream is None:
            torch._foreach_copy_(part.targets, part.sources)
            return lambda: None
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            torch._foreach_copy_(part.targets, part.sources, non_blocking=True)
            arrived.record()
        return lambda: torch.cuda.current_stream().wait_event(arrived)

    def finish(self) -> None:
        """Wait, on the host, for all copies."""
        if self._stream is not None:
            self._stream.synchronize()


class GatedAttention:
    """Attention that waits, at the first layer of each group, for that group's keys."""

    def __init__(self, attention: PagedAttention, num_layers: int) -> None:
        self.gates: list[Gate] = []
        self._attention = attention
        self._num_layers = num_layers
        self._calls = 0

    def __call__(self, q: Tensor, kv: Tensor, layout: BatchLayout, scale: float) -> Tensor:
        """q (T, Hq, D), kv (N, 2, Hkv, B, D) -> (T, Hq, D)."""
        layer = self._calls % self._num_layers
        self._calls += 1
        per_gate = self._num_layers // len(self.gates)
        if layer % per_gate == 0:
            self.gates[layer // per_gate]()
        return self._attention(q, kv, layout, scale)


@dataclass(frozen=True)
class Scene:
    """A model, a prompt of which all but the last tokens lie in the host, and a way to copy."""

    opened: OpenedModel
    host: Tensor  # (blocks of the prefix, layers, 2, kv heads, block size, head dim), pinned
    block_ids: list[int]
    step: Step  # its new tokens, behind the prefix
    lane: Lane

    def part(self, first_block: int = 0, layers: slice = EVERY) -> Part:
        """The blocks of the prefix from one on, or some layers of them."""
        pool = self.opened.pool.tensor
        numbers = range(first_block, len(self.host))
        targets = [pool[self.block_ids[number], layers] for number in numbers]
        return Part(targets, [self.host[number, layers] for number in numbers])

    def load(self, part: Part) -> None:
        """Copies alone."""
        self.lane.copy(part)
        self.lane.finish()

    def compute(self) -> None:
        """The step."""
        self.opened.runner.launch(self.step).collect()

    def load_then_compute(self, part: Part) -> None:
        """All copies, then the step."""
        self.load(part)
        self.compute()

    def in_groups(self, gated: GatedAttention, runner: Runner, parts: list[Part]) -> None:
        """The step at once; each group of layers waits for its copies."""
        gated.gates = [self.lane.copy(part) for part in parts]
        runner.launch(self.step).collect()

    def behind_head(self, head: Step, rest: Part) -> None:
        """The first tokens computed, the others loaded meanwhile; then the step."""
        self.lane.copy(rest)
        self.opened.runner.launch(head).collect()
        self.lane.finish()
        self.compute()


def scene_of(opened: OpenedModel, tokens: int, new: int) -> Scene:
    """A prompt of `tokens` in the host and `new` behind them."""
    pool = opened.pool.tensor
    cache = PrefixCache(num_blocks=opened.num_blocks, block_size=opened.block_size)
    (row,) = rows_of(Shape("prompt", (), ((new, tokens + new),)), cache)
    lease = row.sequence.lease
    if lease is None:
        raise RuntimeError("a row of a step has a lease")
    shape = (tokens // opened.block_size, *pool.shape[1:])
    host = torch.zeros(shape, dtype=pool.dtype, pin_memory=pool.device.type == "cuda")
    return Scene(opened, host, lease.block_ids.tolist(), Step((row,)), Lane(pool.device))


def gated_runner(opened: OpenedModel) -> tuple[GatedAttention, ModelRunner]:
    """The runner that launches op by op, with attention that waits."""
    runner = opened.runner
    eager = runner.eager if isinstance(runner, GraphRunner) else runner
    if not isinstance(eager, ModelRunner):
        raise TypeError("a model's runner is a ModelRunner, or has one")
    ops = eager.decoder.ops
    gated = GatedAttention(ops.paged_attention, opened.model.num_layers)
    decoder = replace(eager.decoder, ops=replace(ops, paged_attention=gated))
    return gated, replace(eager, decoder=decoder)


def measure(name: str, do: Callable[[], None]) -> None:
    """Tell the median and the range."""
    took = []
    for _ in range(REPEATS + 2):
        before = time.perf_counter()
        do()
        took.append((time.perf_counter() - before) * 1e3)
    took = sorted(took[2:])
    emit(name, ms=float(np.median(took)), least_ms=took[0], most_ms=took[-1])


def measure_all(opened: OpenedModel, tokens: int, new: int, heads: Iterable[int]) -> None:
    """Each way, and what the first consists of."""
    scene = scene_of(opened, tokens, new)
    measure("the copies alone", partial(scene.load, scene.part()))
    measure("the step alone", scene.compute)
    measure("all copies, then the step", partial(scene.load_then_compute, scene.part()))
    gated, runner = gated_runner(opened)
    for groups in GROUPS:
        size = opened.model.num_layers // groups
        parts = [scene.part(layers=slice(n * size, (n + 1) * size)) for n in range(groups)]
        if size * groups == opened.model.num_layers:
            measure(f"{groups} groups of layers", partial(scene.in_groups, gated, runner, parts))
    (row,) = scene.step.rows
    for length in heads:
        head = Step((replace(row, start=0, num_new=length),))
        rest = scene.part(length // opened.block_size)
        measure(f"{length} tokens computed meanwhile", partial(scene.behind_head, head, rest))


def main(
    model: Annotated[str, typer.Option(help="A shape's name, 'handbook' or a directory.")] = (
        "handbook"
    ),
    tokens: Annotated[int, typer.Option(help="Of the prefix in host memory.")] = 16_000,
    new: Annotated[int, typer.Option(help="Tokens behind it.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="The smallest sizes.")] = False,
) -> None:
    """One JSON line a way."""
    tokens = 256 if quick else tokens
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        config = EngineConfig(
            model_dir=str(model_directory(model, Path(scratch))),
            socket="",
            load_format="dummy",
            cache_tokens=tokens + new + 1_024,
        )
        progress("opening")
        opened = open_model(config)
    measure_all(opened, tokens, new, (64,) if quick else HEADS)


if __name__ == "__main__":
    typer.run(main)
