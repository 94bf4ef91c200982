"""The time of one step on this device, compared with the least that memory and arithmetic allow.

    python -m benchmarks.step --model llama-3.1-8b [--quick] [--kernels] [--batch 48x2030+2x320 ...]

Weights are random. `--batch` has steps of so many decodes with that context, and of so many
prompts with that many new tokens beside them, in place of the usual.
A line has a step's rows and contexts, the time between two steps on the device, the lower bound
(floor) by this machine's measured copies and products, and the host's time of a launch. There are
steps with and without shared prefixes. Knows the runner; `benchmarks.serving` includes scheduling
and HTTP.
"""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch.profiler import ProfilerActivity, profile

from benchmarks.ceilings import Ceilings, measured_ceilings
from benchmarks.record import emit, progress
from benchmarks.shapes import model_directory
from engine.config import EngineConfig
from engine.loading import OpenedModel, open_model
from engine.messages import SamplingParams
from engine.sequence import Sequence
from engine.step import Row, Step
from prefix_cache.cache import PrefixCache
from prefix_cache.lease import Lease
from prefix_cache.namespace import Namespace, NamespacePath

REPEATS = 12
PATH = NamespacePath.single(Namespace(bytes(16)))


@dataclass(frozen=True)
class Shape:
    """Rows of one token with these contexts, and rows with several new tokens."""

    name: str
    contexts: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...] = ()  # new tokens, context
    group: int = 1  # rows that grow from one prefix
    shared: int = 0  # tokens of the prefix


def quick_shapes() -> list[Shape]:
    """A few small ones."""
    return [
        Shape("1 x 64", (64,)),
        Shape("4 x 64", (64,) * 4),
        Shape("4 x 64 on 48", (64,) * 4, group=2, shared=48),
        Shape("2 x 64 + 32 new", (64,) * 2, ((32, 32),)),
    ]


def shapes() -> list[Shape]:
    """Batches of decodes alone, of those that share, and with a prompt."""
    mixed = tuple(int(128 * 256 ** (n / 63)) for n in range(64))
    return [
        *(Shape(f"{rows} x 1k", (1_100,) * rows) for rows in (1, 4, 8, 32, 48, 64, 96, 128, 256)),
        Shape("64 x 2k", (2_030,) * 64),
        Shape("64 x 2k + 384 new", (2_030,) * 64, ((384, 2_030),)),
        Shape("64 x 4.2k", (4_200,) * 64),
        Shape("64 of 128 to 32k", mixed),
        Shape("64 x 4.2k, 4 on 4k", (4_200,) * 64, group=4, shared=4_096),
        Shape("64 x 4.2k, all on 4k", (4_200,) * 64, group=64, shared=4_096),
        Shape("63 x 4.2k + 128 new", (4_200,) * 63, ((128, 4_224),)),
        Shape("63 x 4.2k, 4 on 4k, + 128 new", (4_200,) * 63, ((128, 4_224),), 4, 4_096),
        Shape("64 new of 8k", (), ((64, 8_256),)),
        Shape("8,192 new", (), ((8_192, 8_192),)),
    ]


def even_shape(batch: str) -> Shape:
    """Of "decodes x context", "+ prompts x new tokens" behind it, without spaces.

    The prompts' new tokens are the last of as large a context. BadParameter where it is not that.
    """
    found = re.fullmatch(r"(\d+)x([1-9]\d*)(?:\+([1-9]\d*)x([1-9]\d*))?", batch)
    numbers = found.groups("0") if found else ("0",) * 4
    decodes, context, prompts, new = map(int, numbers)
    if not decodes + prompts or new > context:
        raise typer.BadParameter(
            f"{batch!r} is not like 48x2030 or 48x2030+2x320", param_hint="--batch"
        )
    beside = f" + {prompts} x {new} new" if prompts else ""
    chunks = ((new, context),) * prompts
    return Shape(f"{decodes} x {context}{beside}", (context,) * decodes, chunks)


def rows_of(shape: Shape, cache: PrefixCache) -> tuple[Row, ...]:
    """Rows over blocks that nobody wrote; what they hold does not matter for the time."""
    rows, leases = [], list[Lease]()
    work = [*((1, context) for context in shape.contexts), *shape.chunks]
    for seat, (new, context) in enumerate(work):
        tokens = np.full(context + 8, 11, np.int32)
        lease = cache.acquire(PATH, tokens[:context], owner="", now=0.0, shares=False)
        if lease is None:
            raise RuntimeError(f"the pool has no room for {shape.name}")
        leases.append(lease)
        stem = leases[seat - seat % shape.group]
        if seat < len(shape.contexts):
            blocks = shape.shared // cache.block_size
            lease.block_ids[:blocks] = stem.block_ids[:blocks]
        wish = SamplingParams(max_tokens=8, temperature=0.0)
        sequence = Sequence(
            "", b"", "", 1.0, PATH, b"", wish, context, 0.0, tokens, context, lease=lease, seat=seat
        )
        rows.append(Row(sequence, context - new, new))
    return tuple(rows)


def floor(shape: Shape, opened: OpenedModel, ceilings: Ceilings) -> float:
    """Seconds: weights and KV read once, or the arithmetic of the products."""
    model = opened.model
    attention = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim * model.hidden_size
    layer = attention + model.num_heads * model.head_dim * model.hidden_size
    layers = model.num_layers * (layer + 3 * model.hidden_size * model.intermediate_size)
    head = model.vocab_size * model.hidden_size
    tokens = len(shape.contexts) + sum(new for new, _ in shape.chunks)
    rows = len(shape.contexts) + len(shape.chunks)
    again = (len(shape.contexts) - -(-len(shape.contexts) // shape.group)) * shape.shared
    keys = sum(shape.contexts) + sum(context for _, context in shape.chunks) - again
    size = {"float32": 4}.get(opened.dtype, 2)
    kv_bytes = 2 * size * model.num_layers * model.num_kv_heads * model.head_dim * keys
    seen = sum(new * (context - new / 2) for new, context in shape.chunks)
    attended = 4 * model.num_layers * model.num_heads * model.head_dim * seen
    products = max(
        size * (layers + head) / ceilings.bytes_per_s,
        2 * (layers * tokens + head * rows) / ceilings.flops,
    )
    return products + max(kv_bytes / ceilings.bytes_per_s, attended / ceilings.flops)


def measure(shape: Shape, opened: OpenedModel, ceilings: Ceilings) -> Step:
    """Tell one line."""
    cache = PrefixCache(num_blocks=opened.num_blocks, block_size=opened.block_size)
    step = Step(rows_of(shape, cache))
    for _ in range(3):
        opened.runner.launch(step).collect()
    host = list[float]()
    if opened.device.startswith("cuda"):
        took = _on_cuda(opened, step, host)
    else:
        took = _on_cpu(opened, step, host)
    least = floor(shape, opened, ceilings) * 1e3
    emit(
        shape.name,
        ms=took,
        floor_ms=least,
        over_floor=took / least,
        host_ms=float(np.median(host)) * 1e3,
    )
    return step


def _on_cuda(opened: OpenedModel, step: Step, host: list[float]) -> float:
    """Milliseconds between two steps on the device; the host's seconds into `host`."""
    events = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(REPEATS + 1)
    ]
    events[0].record()
    for event in events[1:]:
        before = time.perf_counter()
        opened.runner.launch(step)
        host.append(time.perf_counter() - before)
        event.record()
    torch.cuda.synchronize()
    return float(np.median([a.elapsed_time(b) for a, b in pairwise(events)][2:]))


def _on_cpu(opened: OpenedModel, step: Step, host: list[float]) -> float:
    """The same where a launch is all of the step."""
    for _ in range(REPEATS):
        before = time.perf_counter()
        opened.runner.launch(step).collect()
        host.append(time.perf_counter() - before)
    return float(np.median(host)) * 1e3


def _emit_kernels(step: Step, opened: OpenedModel) -> None:
    """Say what the step's time went into."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(3):
            opened.runner.launch(step)
        torch.cuda.synchronize()
    events = sorted(profiled.key_averages(), key=lambda one: -one.device_time_total)
    busy = sum(one.device_time_total for one in events) / 3e3
    progress(f"    busy {busy:.2f} ms")
    for one in events[:14]:
        progress(f"    {one.device_time_total / 3e3:7.3f} ms {one.count // 3:>5} x {one.key[:90]}")


def main(
    model: str = "handbook",
    quick: bool = False,
    kernels: bool = False,
    batch: Annotated[
        list[str] | None, typer.Option(help="Decodes and context: 48x2030, 48x2030+2x320.")
    ] = None,
) -> None:
    """One JSON line a shape."""
    wanted = [even_shape(one) for one in batch or ()]
    on_gpu = torch.cuda.is_available()
    ceilings = measured_ceilings("cuda" if on_gpu else "cpu", small=quick or not on_gpu)
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        config = EngineConfig(
            model_dir=str(model_directory(model, Path(scratch))),
            socket="",
            load_format="dummy",
            cache_tokens=4_096 if quick else 450_000,
            max_running=8 if quick else 256,
        )
        before = time.perf_counter()
        opened = open_model(config)
    if on_gpu:
        torch.cuda.synchronize()
    emit("opened and recorded", seconds=time.perf_counter() - before, device=opened.device)
    for shape in wanted or (quick_shapes() if quick else shapes()):
        progress(f"step {shape.name}")
        step = measure(shape, opened, ceilings)
        if kernels:
            _emit_kernels(step, opened)


if __name__ == "__main__":
    typer.run(main)
