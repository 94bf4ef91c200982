"""The gaps between steps of a full decode batch, in which the device waits for the host.

    python -m benchmarks.engine.gaps --model llama-3.1-8b [--rows 256] [--steps 40] [--quick]

A whole engine in this process, without HTTP, decodes `rows` answers at once. A profiler records
times by the device's own clock. Reports the time from one step to the next, and the gaps in which
nothing ran on the device. The gaps are given by the longest gap, the median of the N longest gaps
for N steps, the number over 20 us, and the share of all time. Target: no gap over 20 us at 256
rows. Without a GPU there is no such clock, and only the steps are reported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine.in_process import LocalEngine, Size
from benchmarks.record import emit
from engine.core import EngineCore

Times = npt.NDArray[np.float64]

# share of the recording that is left out, in which the recorder is still starting
FIRST_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Busy:
    """The intervals, in microseconds, in which kernels and copies ran on the device, by start."""

    starts: Times
    ends: Times

    def gaps(self) -> Times:
        """Return the device's idle intervals, in microseconds, in order."""
        behind = np.maximum.accumulate(self.ends)[:-1]
        gaps: Times = np.maximum(self.starts[1:] - behind, 0.0)
        return gaps


def main(
    model: str = "handbook",
    rows: Annotated[int, typer.Option(min=1)] = 256,
    steps: Annotated[int, typer.Option(min=2)] = 40,
    quick: bool = False,
) -> None:
    """Print a JSON line for each measurement."""
    size = Size(4, 40, 60) if quick else Size(rows, 1_024, 256)
    engine = LocalEngine.open(model, rows, quick=quick)
    engine.ask(np.random.default_rng(7), size)
    core = engine.core
    core.step()
    while core.stats().waiting or core.stats().steps < 30:
        core.step()
    for _ in range(8):
        core.step()
    host = _host_ms(core, steps)
    emit("steps", rows=size.requests, ms_p50=float(np.median(host)), ms_max=float(np.max(host)))
    if engine.opened.welcome.device.startswith("cuda"):
        _emit_gaps(_recorded(core, steps), steps)


def _host_ms(core: EngineCore, steps: int) -> list[float]:
    took = []
    for _ in range(steps):
        before = time.perf_counter()
        core.step()
        took.append(1e3 * (time.perf_counter() - before))
    return took


def _recorded(core: EngineCore, steps: int) -> Busy:
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            core.step()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiled.events()
        if event.device_type == DeviceType.CUDA
    )
    starts, ends = np.array(spans, np.float64).T
    kept = starts > starts[0] + FIRST_SHARE * (ends[-1] - starts[0])
    return Busy(starts[kept], ends[kept])


def _emit_gaps(busy: Busy, steps: int) -> None:
    gaps = busy.gaps()
    whole = busy.ends.max() - busy.starts.min()
    between = np.sort(gaps)[-int(steps * (1 - FIRST_SHARE)) :]
    emit(
        "gaps",
        step_ms=whole / (steps * (1 - FIRST_SHARE)) / 1e3,
        idle_share=float(gaps.sum() / whole),
        longest_us=float(gaps.max()),
        longest_per_step_p50_us=float(np.median(between)),
        over_20_us=int((gaps > 20).sum()),
    )


if __name__ == "__main__":
    typer.run(main)
