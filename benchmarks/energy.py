"""What the parts of a decode step take in joules, on a chip as hot as serving makes it.

    python -m benchmarks.energy [--rows 256] [--context 1100]

A step of many rows runs at the chip's power limit: there it takes as long as its energy does, and
what is a microsecond faster alone may gain nothing. Each part of an 8B's layer is repeated for a
second; a line has its microseconds, millijoules and watts, with those of a plain read of memory
for comparison. The energy is the chip's own count. Needs an NVIDIA GPU.

Knows: parts and the counter. Does not know: whole steps (`step`), or which algorithm is best
(`tune_products`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread

import pynvml
import torch
import typer
from torch import Tensor

from benchmarks.attention import SCALE, make_batch
from benchmarks.hot import recorded, repeated
from benchmarks.products import SHAPES, cold_weights
from benchmarks.record import emit
from kernels.linear import Linear
from kernels.ops import ops_for

WARM_S, MEASURED_S, POLL_S = 0.3, 1.0, 0.002
COLD_BYTES = 2**28  # of weights that take turns
READ_NUMBERS = 2**30  # float32


@dataclass(frozen=True, slots=True)
class Tick:
    """The energy counter when it had just changed: seconds, and joules since some time ago."""

    at: float
    joules: float


@dataclass
class Meter:
    """Notes when a counter that moves a few times a second has moved, in a thread of its own."""

    read_joules: Callable[[], float]
    ticks: list[Tick] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note ticks inside the block."""
        done = Event()
        thread = Thread(target=self._watch, args=(done,))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, done: Event) -> None:
        last = self.read_joules()
        while not done.wait(POLL_S):
            joules = self.read_joules()
            if joules != last:
                self.ticks.append(Tick(time.perf_counter(), joules))
                last = joules


def watts(ticks: list[Tick]) -> float:
    """The mean power from the first tick to the last."""
    if len(ticks) < 2:
        raise ValueError("the energy counter did not move twice")
    return (ticks[-1].joules - ticks[0].joules) / (ticks[-1].at - ticks[0].at)


def main(rows: int = 256, context: int = 1100) -> None:
    """Print one JSON line a part."""
    if not torch.cuda.is_available():
        raise typer.BadParameter("this measures a GPU")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())

    def read_joules() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3

    ops = ops_for(torch.device("cuda"))
    source = torch.randn(READ_NUMBERS, device="cuda")
    report("read 4 GiB", source.sum, 1, read_joules)
    del source
    q, kv, layout = make_batch([context] * rows, 1)
    attend = partial(ops.paged_attention, q, kv, layout, SCALE)
    report(f"attention {rows} x {context}", attend, 1, read_joules)
    del q, kv, layout, attend
    for name, (features, width) in SHAPES.items():
        weights = cold_weights(features, width, "cuda", COLD_BYTES)
        x = torch.randn(rows, width, device="cuda").bfloat16()
        multiply = partial(_each, ops.linear_in_parts, x, weights)
        report(f"{name} of {rows} rows", multiply, len(weights), read_joules)


def _each(linear: Linear, x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        linear(x, weight, None)


def report(
    name: str, launch: Callable[[], object], parts: int, read_joules: Callable[[], float]
) -> None:
    """Print one line; `launch` does the part `parts` times."""
    launch()
    torch.cuda.synchronize()
    graph = recorded(launch)
    repeated(graph, WARM_S)
    meter = Meter(read_joules)
    with meter.running():
        seconds = repeated(graph, MEASURED_S) / parts
    power = watts(meter.ticks)
    emit(name, us=1e6 * seconds, mJ=1e3 * seconds * power, W=power)


if __name__ == "__main__":
    typer.run(main)
