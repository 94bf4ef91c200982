"""Predicts what the named workloads take on a GPU, with bounds of a step or without.

    python -m benchmarks.workloads_modelled [--backlog-steps 16] [--beside-decodes 2048]

`ratoon bench --workload NAME` measures the same requests on a real server; this replays them with
the engine's core and the modelled device of `modelled_products`. Prints one JSON line a workload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated

import numpy as np
import typer

from benchmarks.modelled import VOCAB, Replay, request
from benchmarks.modelled_products import ProductModel
from benchmarks.record import emit
from cli.flags import flattened
from cli.percentiles import percentile
from cli.phases import Chain, Phase, Sizes, WorkloadName, draw_phases, prompts_of
from engine.draft import StepLimits
from engine.messages import Event, Failed, Finished

NAMES: tuple[WorkloadName, ...] = ("mixed", "tenants", "multiturn")
# Of the keys that decodes of *tenants* read 1,024 are all rows' and 3,072 those of some four rows:
# a little less than these would give, since rows of a tenant do not always meet.
READ_ONCE = {"tenants": 0.72}
ON_THE_WAY_S = 5e-3  # from a last token through the client to the engine
FLOW = "tenant"  # one for all, as with one key


@dataclass(frozen=True, slots=True)
class Options:
    """The engine, and the conversations of *multiturn*."""

    backlog_steps: Annotated[
        int, typer.Option("--backlog-steps", min=0, help="As of `ratoon serve`.")
    ] = 0
    beside_decodes: Annotated[
        int | None,
        typer.Option("--beside-decodes", help="Its --max-batch-tokens-beside-decodes."),
    ] = None
    conversations: Annotated[int, typer.Option("--conversations")] = 64
    seed: Annotated[int, typer.Option("--seed")] = 7


@dataclass
class Load:
    """Chains of a phase, `concurrency` of them at once."""

    replay: Replay
    chains: Iterator[Chain]
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    running: int = 0
    _number: count[int] = field(default_factory=count)

    def start(self) -> None:
        """Begin the next chain, if there is one."""
        chain = next(self.chains, None)
        if chain is not None:
            self.running += 1
            self._ask(prompts_of(chain))

    def _ask(self, prompts: Iterator[tuple[list[int], int]]) -> None:
        """Ask the next request of a chain; at its end start another."""
        asked = next(prompts, None)
        if asked is None:
            self.running -= 1
            self.start()
            return
        time = self.replay.time
        time.at(time.now + ON_THE_WAY_S, lambda: self._say(*asked, prompts))

    def _say(
        self, prompt: list[int], output: int, prompts: Iterator[tuple[list[int], int]]
    ) -> None:
        last = self.replay.time.now
        is_first = True

        def hear(event: Event) -> None:
            nonlocal last, is_first
            if isinstance(event, Failed):
                raise RuntimeError(f"a request failed: {event.message}")
            if isinstance(event, Finished):
                self._ask(prompts)
                return
            now = self.replay.time.now
            (self.firsts if is_first else self.gaps).append(now - last)
            last, is_first = now, False

        asked = request(str(next(self._number)), FLOW, np.array(prompt, np.int32), output)
        self.replay.link.say(asked, hear)


def predict(phase: Phase, limits: StepLimits) -> None:
    """Replay one phase and tell one line."""
    replay = Replay(limits, model=ProductModel(read_once=READ_ONCE.get(phase.name, 0.0)))
    load = Load(replay, iter(phase.chains))
    for _ in range(phase.concurrency):
        load.start()
    replay.run(lambda: not load.running)
    firsts, gaps = sorted(load.firsts), sorted(load.gaps)
    tokens = len(firsts) + len(gaps)
    emit(
        phase.name,
        seconds=replay.time.now,
        tokens_per_s=tokens / replay.time.now,
        steps=len(replay.device.steps),
        ttft_p50_ms=1e3 * percentile(firsts, 50),
        ttft_p95_ms=1e3 * percentile(firsts, 95),
        itl_p50_ms=1e3 * percentile(gaps, 50),
        itl_p99_ms=1e3 * percentile(gaps, 99),
    )


def main(options: Options) -> None:
    """Predict each workload."""
    limits = StepLimits(
        8192,
        256,
        beside_decodes=options.beside_decodes,
        backlog_steps=options.backlog_steps,
    )
    sizes = Sizes(conversations=options.conversations)
    for name in NAMES:
        for phase in draw_phases(name, sizes, VOCAB, options.seed):
            predict(phase, limits)


if __name__ == "__main__":
    typer.run(flattened(main))
