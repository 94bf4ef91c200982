"""The cost of the prefix cache for a workload without cache hits.

    python -m benchmarks.engine.cache_cost --model llama-3.1-8b [--quick]

A whole engine in this process, without HTTP, computes prompts that have no tokens in common. Rounds
that use the cache alternate with rounds that bypass it, because a machine's speed drifts. Reports
the median tokens a second of both, and the share lost. Target: at most 1 % lost, later 0.3 %.
"""

from __future__ import annotations

import statistics

import numpy as np
import typer

from benchmarks.engine.in_process import LocalEngine, Size
from benchmarks.record import emit, progress

FULL, QUICK = Size(512, 768, 192, 5), Size(4, 40, 8, 2)


def main(model: str = "handbook", quick: bool = False) -> None:
    """Print a JSON line for each round, and the cost of the cache."""
    size, rng = QUICK if quick else FULL, np.random.default_rng(7)
    engine = LocalEngine.open(model, 256, quick=quick)
    speeds: dict[bool, list[float]] = {True: [], False: []}
    _seconds(engine, rng, size, use_cache=True)  # warm-up
    for number in range(size.rounds):
        for use_cache in (True, False) if number % 2 else (False, True):
            progress(f"round {number + 1} of {size.rounds}, cache {'on' if use_cache else 'off'}")
            took = _seconds(engine, rng, size, use_cache=use_cache)
            speeds[use_cache].append(size.requests * size.output / took)
            emit("round", cache=use_cache, output_tokens_per_s=speeds[use_cache][-1])
    on, off = statistics.median(speeds[True]), statistics.median(speeds[False])
    emit("cache without hits", on_tokens_per_s=on, off_tokens_per_s=off, lost_share=1 - on / off)


def _seconds(
    engine: LocalEngine, rng: np.random.Generator, size: Size, *, use_cache: bool
) -> float:
    engine.ask(rng, size, use_cache=use_cache)
    return engine.run()


if __name__ == "__main__":
    typer.run(main)
