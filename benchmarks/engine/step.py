"""The time of a model step on this device, compared with the bounds of memory and arithmetic.

    python -m benchmarks.engine.step --model llama-3.1-8b [--quick] [--kernels]

Weights are random. `--kernels` lists the slowest kernels. A line has a step's rows and
contexts, and the time between two steps on the device. A line also has a lower bound of the step
time (floor), computed from this machine's measured copies and products, and the host's time for a
launch. There are steps with and without shared prefixes. `benchmarks.serving` includes scheduling
and HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain, count, pairwise

import numpy as np
import torch
import typer
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine.ceilings import Ceilings, measured_ceilings
from benchmarks.engine.in_process import opened_model
from benchmarks.record import emit, progress
from engine.drafting.acceptance import MOST_DRAFTS
from engine.drafting.draft import Draft
from engine.models.config import ModelConfig
from engine.models.layers.layer import attentions
from engine.models.weight_formats.fp8 import Fp8Format
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import ScheduledRow, row_of, verify_row
from engine.startup.loading import OpenedModel
from engine.step import Step
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.lease import Lease
from storage.layouts.kv_layout import ITEM_BYTES
from tests.engine.rigs.hand_driven import sampling, sequence_of

REPEATS = 12
LEASE_IDS = count(1)


@dataclass(frozen=True)
class BenchShape:
    """A batch shape: decode rows with these context lengths, and rows with several new tokens."""

    name: str
    contexts: tuple[int, ...]
    # for each prompt row: the numbers of new tokens and of context tokens
    chunks: tuple[tuple[int, int], ...] = ()
    group: int = 1  # number of rows that share a prefix
    shared: int = 0
    drafts: int = 0


def quick_shapes() -> list[BenchShape]:
    """List a few small batch shapes."""
    return [
        BenchShape("1 x 64", (64,)),
        BenchShape("4 x 64", (64,) * 4),
        BenchShape("4 x 64 on 48", (64,) * 4, group=2, shared=48),
        BenchShape("2 x 64, 3 drafts", (64,) * 2, drafts=3),
        BenchShape("2 x 64 + 32 new", (64,) * 2, ((32, 32),)),
    ]


def shapes() -> list[BenchShape]:
    """List batch shapes: decodes alone, with shared prefixes, and with a prompt."""
    mixed = tuple(int(128 * 256 ** (n / 63)) for n in range(64))
    return [
        *(
            BenchShape(f"{rows} x 1k", (1_100,) * rows)
            for rows in (1, 4, 8, 32, 48, 64, 96, 128, 256)
        ),
        *(BenchShape(f"{rows} x 1k, 5 drafts", (1_100,) * rows, drafts=5) for rows in (1, 8, 32)),
        BenchShape("1 x 0.9k, 63 drafts", (900,), drafts=MOST_DRAFTS),
        BenchShape("1 x 1k, 63 drafts", (1_100,), drafts=MOST_DRAFTS),
        BenchShape("4 x 1k, 63 drafts", (1_100,) * 4, drafts=MOST_DRAFTS),
        BenchShape("1 x 32k", (32_700,)),
        BenchShape("1 x 32k, 15 drafts", (32_700,), drafts=15),
        BenchShape("1 x 32k, 63 drafts", (32_700,), drafts=MOST_DRAFTS),
        BenchShape("64 x 2k", (2_030,) * 64),
        BenchShape("64 x 2k + 384 new", (2_030,) * 64, ((384, 2_030),)),
        BenchShape("64 x 4.2k", (4_200,) * 64),
        BenchShape("64 of 128 to 32k", mixed),
        BenchShape("64 x 4.2k, 4 on 4k", (4_200,) * 64, group=4, shared=4_096),
        BenchShape("64 x 4.2k, all on 4k", (4_200,) * 64, group=64, shared=4_096),
        BenchShape("63 x 4.2k + 128 new", (4_200,) * 63, ((128, 4_224),)),
        BenchShape("63 x 4.2k, 4 on 4k, + 128 new", (4_200,) * 63, ((128, 4_224),), 4, 4_096),
        BenchShape("64 new of 8k", (), ((64, 8_256),)),
        BenchShape("8,192 new", (), ((8_192, 8_192),)),
    ]


def rows_of(shape: BenchShape, cache: PrefixCache) -> tuple[ScheduledRow, ...]:
    """Create rows over unwritten blocks, whose content does not affect the time."""
    rows, leases = [], list[Lease]()
    work = [*((1, context) for context in shape.contexts), *shape.chunks]
    for batch_slot, (new, context) in enumerate(work):
        sequence = sequence_of([11] * context, sampling(8))
        ids = sequence.tokens[:context]
        lease = cache.acquire(sequence.path, ids, owner="", now=0.0, shares=False)
        if lease is None:
            raise RuntimeError(f"the pool has no room for {shape.name}")
        leases.append(lease)
        stem = leases[batch_slot - batch_slot % shape.group]
        if batch_slot < len(shape.contexts):
            blocks = shape.shared // cache.block_size
            lease.block_ids[:blocks] = stem.block_ids[:blocks]
        sequence.batch_slot = batch_slot
        sequence.hold(lease, next(LEASE_IDS))
        if shape.drafts and batch_slot < len(shape.contexts):
            sequence.num_tokens = context - shape.drafts
            sequence.num_computed = sequence.num_tokens - 1
            rows.append(verify_row(sequence, Draft((11,) * shape.drafts, "own")))
        else:
            rows.append(row_of(sequence, new, context - new))
    return tuple(rows)


def tokens_read(shape: BenchShape) -> int:
    """Count the tokens whose KV is read. A shared prefix counts once for its group."""
    again = (len(shape.contexts) - -(-len(shape.contexts) // shape.group)) * shape.shared
    return sum(shape.contexts) + sum(context for _, context in shape.chunks) - again


def bytes_a_weight(model: ModelConfig, dtype: str) -> float:
    """Return the mean bytes of a weight in the layers' matrices, including scales."""
    matrices = chain.from_iterable(
        layer.matrices(index) for index, layer in enumerate(model.layers)
    )
    held = sum(layer.num_held_weights for layer in model.layers)
    return sum(model.weight_format.num_bytes(one, dtype) for one in matrices) / held


def floor(shape: BenchShape, opened: OpenedModel, ceilings: Ceilings) -> float:
    """Return a lower bound of a step's seconds, by the bytes read and the operations."""
    model = opened.model
    layers = sum(layer.num_weights for layer in model.layers)
    head = model.vocab_size * model.hidden_size
    tokens = len(shape.contexts) + sum(new for new, _ in shape.chunks)
    rows = len(shape.contexts) + len(shape.chunks)
    dtype = opened.welcome.dtype
    weight_bytes = layers * bytes_a_weight(model, dtype) + head * ITEM_BYTES[dtype]
    kv_bytes = opened.pool.layout.token_bytes * tokens_read(shape)
    seen = sum(new * (context - new / 2) for new, context in shape.chunks)
    attended = sum(one.attention_flops for one in attentions(model.layers)) * seen
    is_fp8 = isinstance(model.weight_format, Fp8Format)
    of_layers = ceilings.fp8_flops if is_fp8 else ceilings.flops
    products = max(
        weight_bytes / ceilings.bytes_per_s,
        2 * layers * tokens / of_layers + 2 * head * rows / ceilings.flops,
    )
    return products + max(kv_bytes / ceilings.bytes_per_s, attended / ceilings.flops)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step, and its two median times.

    `ms` is the time from one step's end to the next step's end. `host_ms` is the host's time to
    launch a step. On a CPU both are the time of a whole step.
    """

    step: Step
    ms: float
    host_ms: float


def timed(shape: BenchShape, opened: OpenedModel) -> StepTimes:
    """Measure a step with the rows of `shape`."""
    cache = PrefixCache(num_blocks=opened.num_blocks, block_size=opened.welcome.block_size)
    rows = rows_of(shape, cache)
    for _ in range(3):
        opened.runner.launch(step_of(rows).step).collect()
    # a second step: unlike the first, it sends no new state of its rows to the device
    step = step_of(rows).step
    on_cuda = opened.welcome.device.startswith("cuda")
    host, events = [], list[torch.cuda.Event]()
    for _ in range(REPEATS):
        before = time.perf_counter()
        launched = opened.runner.launch(step)
        if not on_cuda:
            launched.collect()
        host.append(1e3 * (time.perf_counter() - before))
        if on_cuda:
            events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            events[-1].record()
    took = float(np.median(host))
    if on_cuda:
        torch.cuda.synchronize()
        took = float(np.median([a.elapsed_time(b) for a, b in pairwise(events)][1:]))
    return StepTimes(step, took, float(np.median(host)))


def measure(shape: BenchShape, opened: OpenedModel, ceilings: Ceilings) -> Step:
    """Measure a shape, print its line, and return the step."""
    times, least = timed(shape, opened), floor(shape, opened, ceilings) * 1e3
    emit(
        shape.name, ms=times.ms, floor_ms=least, over_floor=times.ms / least, host_ms=times.host_ms
    )
    return times.step


def _emit_kernels(step: Step, opened: OpenedModel) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(3):
            opened.runner.launch(step)
        torch.cuda.synchronize()
    events = sorted(profiled.key_averages(), key=lambda one: -one.device_time_total)
    busy = sum(one.device_time_total for one in events) / 3e3
    progress(f"    busy {busy:.2f} ms")
    for one in events[:14]:
        progress(f"    {one.device_time_total / 3e3:7.3f} ms {one.count // 3:>5} x {one.key[:90]}")


def main(model: str = "handbook", quick: bool = False, kernels: bool = False) -> None:
    """Print a JSON line for each shape."""
    on_gpu = torch.cuda.is_available()
    ceilings = measured_ceilings("cuda" if on_gpu else "cpu", small=quick or not on_gpu)
    sizes = (4_096, 8) if quick else (450_000, 256)
    before = time.perf_counter()
    _, opened = opened_model(model, cache_tokens=sizes[0], max_running=sizes[1])
    if on_gpu:
        torch.cuda.synchronize()
    emit("opened and recorded", seconds=time.perf_counter() - before, device=opened.welcome.device)
    for shape in quick_shapes() if quick else shapes():
        progress(f"step {shape.name}")
        step = measure(shape, opened, ceilings)
        if kernels:
            _emit_kernels(step, opened)


if __name__ == "__main__":
    typer.run(main)
