"""Predicts the effect of a flood on a GPU: a visitor's times, and the throughput that they cost.

    python -m benchmarks.flood_modelled --streams 64 --flood-prompt 8000 --victim-prompt 2000
    python -m benchmarks.flood_modelled --equals

`benchmarks.flood` measures the same on a real server; this replays it with the engine's core and
the modelled device of `modelled`. With --equals it replays 16 equal tenants instead, with 4 streams
each, and prints their requests a second.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.modelled import VOCAB, Replay, StepModel
from cli.flags import flattened
from cli.percentiles import percentile
from engine.draft import StepLimits

WARM_UP_S = 2.0  # as in `benchmarks.flood`
EQUALS, EACH = 16, 4  # tenants that ask alike, and streams of each
EQUAL_REQUESTS = 512


@dataclass(frozen=True, slots=True)
class Asked:
    """The requests of flood and victim."""

    streams: Annotated[int, typer.Option("--streams", help="Of the flood, at once.")] = 64
    floods: Annotated[int, typer.Option("--floods", help="Tenants that the flood comes from.")] = 1
    flood_prompt: Annotated[int, typer.Option("--flood-prompt", help="Tokens of each.")] = 8000
    flood_output: Annotated[int, typer.Option("--flood-output", help="Tokens of each.")] = 32
    victim_output: Annotated[int, typer.Option("--victim-output", help="Tokens.")] = 8
    asks: Annotated[int, typer.Option("--asks", help="Of the victim beside the flood.")] = 60
    pause: Annotated[float, typer.Option("--pause", help="Seconds, before each ask.")] = 0.5


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine whose behaviour is predicted."""

    max_batch_tokens: Annotated[int, typer.Option("--max-batch-tokens")] = 8192
    beside_visitors: Annotated[
        int | None,
        typer.Option("--beside-visitors", help="Left out: visitors are treated like everybody."),
    ] = None
    backlog_steps: Annotated[
        int, typer.Option("--backlog-steps", min=0, help="As of `ratoon serve`.")
    ] = 0
    eager_launch_ms: Annotated[
        float,
        typer.Option("--eager-launch-ms", help="Launch time of a step that is not a CUDA graph."),
    ] = 6.0
    noise: Annotated[
        float, typer.Option("--noise", help="Largest random delay of a step, as a share of it.")
    ] = 0.02

    def replay(self) -> Replay:
        """A replay of this engine, without clients yet."""
        limits = StepLimits(
            self.max_batch_tokens,
            256,
            backlog_steps=self.backlog_steps,
            beside_visitors=self.beside_visitors,
        )
        model = StepModel(eager_launch=self.eager_launch_ms / 1e3)
        return Replay(limits, model=model, noise=self.noise)


@dataclass(frozen=True)
class Outcome:
    """Seconds to the victim's first tokens, and tokens computed a second meanwhile."""

    alone: list[float]
    beside: list[float]
    all_tokens: float
    flood_tokens: float
    idle: float  # share of the time in which the device stood still

    def times(self, percent: float) -> float:
        """How many times as long as alone, at a percentile."""
        beside, alone = sorted(self.beside), sorted(self.alone)
        return percentile(beside, percent) / percentile(alone, percent)


def flooded(replay: Replay, asked: Asked, prompt: int) -> Outcome:
    """The victim alone, then beside the flood."""
    alone = replay.stream("victim", prompt, asked.victim_output, asked.pause)
    alone.start()
    replay.run(lambda: alone.finished >= asked.asks // 3)
    alone.is_asking = False
    crowd = [
        replay.stream(f"flood{n % asked.floods}", asked.flood_prompt, asked.flood_output)
        for n in range(asked.streams)
    ]
    for one in crowd:
        one.start()
    replay.run_for(WARM_UP_S)
    victim = replay.stream("victim", prompt, asked.victim_output, asked.pause)
    victim.start()
    since, done = replay.time.now, len(replay.device.steps)
    idle = replay.device.idle
    replay.run(lambda: len(victim.firsts) >= asked.asks)
    seconds = replay.time.now - since
    rows = [row for _, step in replay.device.steps[done:] for row in step.rows]
    tokens = sum(row.num_new for row in rows if row.sequence.flow != "victim")
    return Outcome(
        alone.firsts,
        victim.firsts,
        sum(row.num_new for row in rows) / seconds,
        tokens / seconds,
        (replay.device.idle - idle) / seconds,
    )


def requests_a_second(replay: Replay, *, pause_s: float) -> float:
    """Of equal tenants, each with a prefix of its own."""
    dice = random.Random(3)
    all_of_them = []
    for flow in range(EQUALS):
        prefix = tuple(dice.choices(range(10, VOCAB), k=4096))
        for _ in range(EACH):
            one = replay.stream(f"tenant{flow}", 4096 + 128, 64, pause_s)
            one.shared = prefix
            one.start()
            all_of_them.append(one)
    replay.run(lambda: sum(one.finished for one in all_of_them) >= EQUAL_REQUESTS)
    return EQUAL_REQUESTS / replay.time.now


def main(
    asked: Asked,
    engine: Engine,
    victim_prompt: Annotated[
        list[int] | None,
        typer.Option("--victim-prompt", help="Tokens; may be given several times."),
    ] = None,
    equals: Annotated[bool, typer.Option("--equals", help="Tenants that all ask alike.")] = False,
) -> None:
    """Predict each length of prompt, and print a line of JSON for each."""
    if equals:
        per_s = requests_a_second(engine.replay(), pause_s=asked.pause)
        print(json.dumps({"tenants": EQUALS, "requests_s": round(per_s, 1)}))
        return
    for prompt in victim_prompt or [2000, 8000]:
        outcome = flooded(engine.replay(), asked, prompt)
        figures = {
            "victim_prompt": prompt,
            "alone_ms": round(1e3 * percentile(sorted(outcome.alone), 50), 1),
            **{f"p{percent}": round(outcome.times(percent), 2) for percent in (50, 90, 99)},
            "all_tokens_s": round(outcome.all_tokens),
            "flood_tokens_s": round(outcome.flood_tokens),
            "idle": round(outcome.idle, 4),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    typer.run(flattened(main))
