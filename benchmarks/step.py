"""What one step takes on this GPU, against the least that memory and arithmetic allow.

Run as `python -m benchmarks.step MODEL_DIR [--kernels]`; weights are random. A line tells a step's
rows and contexts, the time between two steps on the device, the floor, and the host's part of a
launch. Knows the runner; what scheduling and HTTP cost is told by the server's benchmark.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from engine.config import EngineConfig
from engine.loading import OpenedModel, open_model
from engine.messages import SamplingParams
from engine.sequence import Sequence
from engine.step import Row, Step
from prefix_cache.cache import PrefixCache
from prefix_cache.namespace import Namespace, NamespacePath

BANDWIDTH, FLOPS = 4.2e12, 780e12  # bytes and operations a second, measured on an H200
REPEATS = 12
PATH = NamespacePath.single(Namespace(bytes(16)))


@dataclass(frozen=True)
class Shape:
    """Rows of one token with these contexts, and rows with several new tokens."""

    name: str
    contexts: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...] = ()  # new tokens, context


def shapes() -> list[Shape]:
    """Batches of decodes alone, and with a prompt."""
    mixed = tuple(int(128 * 256 ** (n / 63)) for n in range(64))
    return [
        *(Shape(f"{rows} x 1k", (1_100,) * rows) for rows in (1, 32, 128, 256)),
        Shape("64 x 4.2k", (4_200,) * 64),
        Shape("64 of 128 to 32k", mixed),
        Shape("63 x 4.2k + 128 new", (4_200,) * 63, ((128, 4_224),)),
        Shape("64 new of 8k", (), ((64, 8_256),)),
        Shape("8,192 new", (), ((8_192, 8_192),)),
    ]


def rows_of(shape: Shape, cache: PrefixCache) -> tuple[Row, ...]:
    """Rows over blocks that nobody wrote; what they hold does not matter for the time."""
    rows = []
    work = [*((1, context) for context in shape.contexts), *shape.chunks]
    for seat, (new, context) in enumerate(work):
        tokens = np.full(context + 8, 11, np.int32)
        lease = cache.acquire(PATH, tokens[:context], owner="", now=0.0, shares=False)
        wish = SamplingParams(max_tokens=8, temperature=0.0)
        sequence = Sequence(
            "", b"", "", 1.0, PATH, b"", wish, context, 0.0, tokens, context, lease=lease, seat=seat
        )
        rows.append(Row(sequence, context - new, new))
    return tuple(rows)


def floor(shape: Shape, opened: OpenedModel) -> float:
    """Seconds: weights and KV read once, or the arithmetic of the products."""
    model = opened.model
    attention = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim * model.hidden_size
    layer = attention + model.num_heads * model.head_dim * model.hidden_size
    layers = model.num_layers * (layer + 3 * model.hidden_size * model.intermediate_size)
    head = model.vocab_size * model.hidden_size
    tokens = len(shape.contexts) + sum(new for new, _ in shape.chunks)
    rows = len(shape.contexts) + len(shape.chunks)
    keys = sum(shape.contexts) + sum(context for _, context in shape.chunks)
    kv_bytes = 2 * 2 * model.num_layers * model.num_kv_heads * model.head_dim * keys
    seen = sum(new * (context - new / 2) for new, context in shape.chunks)
    attended = 4 * model.num_layers * model.num_heads * model.head_dim * seen
    products = max(2 * (layers + head) / BANDWIDTH, 2 * (layers * tokens + head * rows) / FLOPS)
    return products + max(kv_bytes / BANDWIDTH, attended / FLOPS)


def measure(shape: Shape, opened: OpenedModel) -> Step:
    """Print one line."""
    cache = PrefixCache(num_blocks=opened.num_blocks, block_size=opened.block_size)
    step = Step(rows_of(shape, cache))
    for _ in range(3):
        opened.runner.launch(step).collect()
    events = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(REPEATS + 1)
    ]
    events[0].record()
    host = []
    for event in events[1:]:
        before = time.perf_counter()
        opened.runner.launch(step)
        host.append(time.perf_counter() - before)
        event.record()
    torch.cuda.synchronize()
    gaps = [a.elapsed_time(b) for a, b in pairwise(events)]
    took, least = float(np.median(gaps[2:])), floor(shape, opened) * 1e3
    print(
        f"{shape.name:>20}: {took:8.2f} ms, floor {least:8.2f}, x{took / least:5.2f}, "
        f"host {np.median(host) * 1e3:6.2f} ms",
        flush=True,
    )
    return step


def kernels(step: Step, opened: OpenedModel) -> None:
    """Print what the step's time went into."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(3):
            opened.runner.launch(step)
        torch.cuda.synchronize()
    events = sorted(profiled.key_averages(), key=lambda one: -one.device_time_total)
    busy = sum(one.device_time_total for one in events) / 3e3
    print(f"    busy {busy:.2f} ms")
    for one in events[:14]:
        print(f"    {one.device_time_total / 3e3:7.3f} ms {one.count // 3:>5} x {one.key[:90]}")


def main(arguments: list[str]) -> None:
    """One line a shape."""
    config = EngineConfig(
        model_dir=arguments[0], socket="", device="cuda", load_format="dummy", cache_tokens=450_000
    )
    before = time.perf_counter()
    opened = open_model(config)
    torch.cuda.synchronize()
    print(f"opened and recorded in {time.perf_counter() - before:.1f} s", flush=True)
    for shape in shapes():
        step = measure(shape, opened)
        if "--kernels" in arguments:
            kernels(step, opened)


if __name__ == "__main__":
    main(sys.argv[1:])
