"""Predictions of workloads and floods on a GPU: the engine's core runs on a simulated device.

    python -m benchmarks.modelled [--target-itl-ms 25] [--cold]
    python -m benchmarks.modelled --bursts [--mixture]
    python -m benchmarks.modelled --drafts
    python -m benchmarks.modelled --flood --streams 64 --flood-prompt 8000 --victim-prompt 2000
    python -m benchmarks.modelled --equals
    python -m benchmarks.modelled --states 390 --pool-tokens 609792 [--share 0.9 --longest 32768]

`ratoon bench --workload NAME` and `benchmarks.flood` measure the same requests on a real server.

The first command replays the named workloads with the step times of
`tests.doubles.modelled.products`. With --mixture it takes the step times of
`tests.doubles.modelled.mixture`. --bursts replays *mixed* and then *itl* on one engine, which has
only the step times of *mixed* to predict its first steps of *itl*. --drafts replays *mixed* without
drafts, and then with drafts that are rejected. The other commands take a fixed
time for each token (`StepModel`). --flood prints a victim's times, and the throughput of all.
--equals replays 16 equal tenants with 4 streams each, and prints their requests a second. --states
N replays *multiturn*, *agents* and *mixed* on a model with N state slots. With --share S the cache
is partitioned, and the tenant's partition is the share S. The working area then has room for
another tenant's requests of --longest tokens. Prints a JSON line for each prediction.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from benchmarks.modelled_load import FLOW, WorkloadDrive, warmed
from benchmarks.record import emit
from cli.load.percentiles import percentile
from cli.load.phases import LoadPhase, WorkloadName, WorkloadSizes, draw_phases
from cli.options.flags import flattened
from engine.main import CUDA_MAX_STEP_MS
from engine.scheduling.step_builder import StepLimits
from prefix_cache.eviction.shares import Quota
from tests.doubles.modelled.device import StepModel
from tests.doubles.modelled.mixture import MixtureModel
from tests.doubles.modelled.products import ProductModel
from tests.doubles.modelled.replay import POOL_TOKENS, VOCAB, Replay

NAMES: tuple[WorkloadName, ...] = ("mixed", "tenants", "multiturn", "agents")
SAMPLED_IDS = 64  # few enough for many drafts, and enough that most are rejected
STATEFUL: tuple[WorkloadName, ...] = ("multiturn", "agents", "mixed")
BURSTS: tuple[WorkloadName, ...] = ("mixed", "itl")
# The share of keys that a decode of *tenants* reads once for several rows: all rows share 1,024
# keys, and about four rows share 3,072. The share is smaller than these numbers suggest, because a
# tenant's rows do not always run together.
READ_ONCE = {"tenants": 0.72}
# Qwen3.5 27B in fp8 on one H200: a decode takes 8.2 ms, and 8,192 tokens of a prompt take 480 ms.
HYBRID = StepModel(of_itself=8.0e-3, token=55e-6, pair=0.6e-9, decode_key=8e-9)
WARM_UP_S = 2.0  # seconds of a flood's warm-up, as in `benchmarks.flood`
EQUALS, EACH = 16, 4
EQUAL_REQUESTS = 512


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The conversations of *multiturn*, and the seed of the random draws."""

    conversations: int = 64
    seed: int = 7
    cold: Annotated[bool, typer.Option("--cold", help="No prompt came before.")] = False
    mixture: Annotated[bool, typer.Option("--mixture", help="Of experts, in place of an 8B.")] = (
        False
    )
    bursts: Annotated[bool, typer.Option("--bursts", help="Mixed, then itl, on one engine.")] = (
        False
    )
    drafts: Annotated[bool, typer.Option("--drafts", help="Mixed, with rejected drafts.")] = False

    @property
    def model(self) -> ProductModel:
        """The model of step times."""
        return MixtureModel() if self.mixture else ProductModel()


@dataclass(frozen=True, slots=True)
class FloodOptions:
    """The requests of flood and victim."""

    streams: Annotated[int, typer.Option(help="Of the flood, at once.")] = 64
    floods: Annotated[int, typer.Option(help="Tenants that the flood comes from.")] = 1
    flood_prompt: Annotated[int, typer.Option(help="Tokens of each.")] = 8000
    flood_output: Annotated[int, typer.Option(help="Tokens of each.")] = 32
    victim_output: Annotated[int, typer.Option(help="Tokens.")] = 8
    asks: Annotated[int, typer.Option(help="Of the victim beside the flood.")] = 60
    pause: Annotated[float, typer.Option(help="Seconds, before each ask.")] = 0.5


@dataclass(frozen=True, slots=True)
class StateOptions:
    """The device's memory for a hybrid, and its tenant's share of the cache."""

    states: Annotated[int, typer.Option(min=0, help="State slots; 0: no recurrent layers.")] = 0
    pool_tokens: Annotated[int, typer.Option(help="Tokens of KV.")] = POOL_TOKENS
    share: Annotated[
        float, typer.Option(min=0, max=1, help="The tenant's part; 1: not partitioned.")
    ] = 1.0
    longest: Annotated[int, typer.Option(min=0, help="Tokens of another tenant's request.")] = 0

    def replay(self, limits: StepLimits) -> Replay:
        """Return a replay on a model with recurrent layers."""
        replay = Replay(limits, model=HYBRID, pool_tokens=self.pool_tokens, num_states=self.states)
        if self.share < 1:
            quotas = {FLOW: Quota(weight=self.share), "other": Quota(weight=1 - self.share)}
            cache = replay.core.components.cache
            longest = {"other": cache.blocks_for(self.longest)} if self.longest else None
            cache.quotas.partition(quotas, longest)
        return replay


@dataclass(frozen=True, slots=True)
class ModelledEngine:
    """The modelled engine's settings. `noise` and `eager_launch_ms` apply to --flood, --equals."""

    max_batch_tokens: int = 8192
    target_itl_ms: Annotated[float, typer.Option(min=0, help="As of `ratoon serve`.")] = 0.0
    eager_launch_ms: Annotated[
        float, typer.Option(help="Launch time of a step that is not a CUDA graph.")
    ] = 6.0
    noise: Annotated[
        float, typer.Option(help="Largest random delay of a step, as a share of it.")
    ] = 0.02

    @property
    def limits(self) -> StepLimits:
        """The bounds of the engine's steps."""
        target_s = self.target_itl_ms / 1e3 or None
        return StepLimits(self.max_batch_tokens, 256, CUDA_MAX_STEP_MS / 1e3, target_itl_s=target_s)

    def replay(self) -> Replay:
        """Return a replay on this engine with a fixed time per token. The caller adds clients."""
        model = StepModel(eager_launch=self.eager_launch_ms / 1e3)
        return Replay(self.limits, model=model, noise=self.noise)


def predict(phase: LoadPhase, replay: Replay) -> None:
    """Replay a phase and print its JSON line."""
    device, begun = replay.device, replay.time.now
    steps = len(device.steps)
    if device.model is not HYBRID:
        device.model = replace(device.model, read_once=READ_ONCE.get(phase.name, 0.0))
    load = WorkloadDrive(replay, iter(phase.chains))
    for _ in range(phase.concurrency):
        load.start()
    replay.run(lambda: not load.running)
    seconds = replay.time.now - begun
    firsts, gaps = sorted(load.firsts), sorted(load.gaps)
    emit(
        phase.name,
        seconds=seconds,
        tokens_per_s=(len(firsts) + len(gaps)) / seconds,
        steps=len(device.steps) - steps,
        ttft_p50_ms=1e3 * percentile(firsts, 50),
        ttft_p95_ms=1e3 * percentile(firsts, 95),
        itl_p50_ms=1e3 * percentile(gaps, 50),
        itl_p99_ms=1e3 * percentile(gaps, 99),
        itl_max_ms=1e3 * gaps[-1],
        cached_tokens=load.cached_tokens,
        prompt_tokens=load.prompt_tokens,
    )


def predict_workloads(limits: StepLimits, asked: WorkloadOptions) -> None:
    """Replay workloads, each phase on a new engine, but all bursts on the same engine."""
    sizes = WorkloadSizes(conversations=asked.conversations)
    replay: Replay | None = None
    for name in BURSTS if asked.bursts else NAMES:
        for phase in draw_phases(name, sizes, VOCAB, asked.seed):
            if replay is None or not asked.bursts:
                new = Replay(limits, model=asked.model)
                replay = new if asked.cold else warmed(new)
            predict(phase, replay)


def predict_drafts(limits: StepLimits, asked: WorkloadOptions) -> None:
    """Replay *mixed* without drafts, and then with drafts that are rejected."""
    for drafts in (False, True):
        for phase in draw_phases("mixed", WorkloadSizes(), VOCAB, asked.seed):
            replay = warmed(Replay(limits, model=asked.model, drafts=drafts))
            replay.device.sampled_ids = SAMPLED_IDS
            predict(phase, replay)


def predict_states(limits: StepLimits, asked: StateOptions, seed: int) -> None:
    """Predict workloads on a hybrid, and print a JSON line for each."""
    for name in STATEFUL:
        for phase in draw_phases(name, WorkloadSizes(), VOCAB, seed):
            predict(phase, asked.replay(limits))


def predict_flood(replay: Replay, asked: FloodOptions, prompt: int) -> None:
    """Predict a victim's times to first token with and without the flood, and the throughput."""
    alone = replay.stream("victim", prompt, asked.victim_output, asked.pause)
    alone.start()
    replay.run(lambda: alone.finished >= asked.asks // 3)
    alone.is_asking = False
    for number in range(asked.streams):
        flow = f"flood{number % asked.floods}"
        replay.stream(flow, asked.flood_prompt, asked.flood_output).start()
    replay.run_for(WARM_UP_S)
    victim = replay.stream("victim", prompt, asked.victim_output, asked.pause)
    victim.start()
    device = replay.device
    since, done, idle = replay.time.now, len(device.steps), device.idle
    replay.run(lambda: len(victim.firsts) >= asked.asks)
    seconds = replay.time.now - since
    rows = [row for _, step in device.steps[done:] for row in step.rows]
    owners = [owner for step in device.owners[done:] for owner in step]
    others = zip(rows, owners, strict=True)
    tokens = sum(row.num_new for row, owner in others if owner.flow != "victim")
    usual, beside = sorted(alone.firsts), sorted(victim.firsts)
    times = {
        f"p{percent}_times_alone": percentile(beside, percent) / percentile(usual, percent)
        for percent in (50, 90, 99)
    }
    emit(
        f"a prompt of {prompt} tokens",
        alone_ms=1e3 * percentile(usual, 50),
        **times,
        all_tokens_per_s=sum(row.num_new for row in rows) / seconds,
        flood_tokens_per_s=tokens / seconds,
        idle_share=(device.idle - idle) / seconds,
    )


def requests_a_second(replay: Replay, *, pause_s: float) -> float:
    """Measure the rate of equal tenants, each with its own prefix."""
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
    engine: ModelledEngine,
    workloads: WorkloadOptions,
    asked: FloodOptions,
    states: StateOptions,
    victim_prompt: Annotated[
        list[int] | None, typer.Option(help="Tokens; may be given several times.")
    ] = None,
    flood: Annotated[bool, typer.Option("--flood", help="A visitor beside a flood.")] = False,
    equals: Annotated[bool, typer.Option("--equals", help="Tenants that all ask alike.")] = False,
) -> None:
    """Predict workloads, a flood or equal tenants, and print a JSON line for each."""
    if equals:
        per_s = requests_a_second(engine.replay(), pause_s=asked.pause)
        emit(f"{EQUALS} equal tenants", requests_per_s=per_s)
    elif flood:
        for prompt in victim_prompt or [2000, 8000]:
            predict_flood(engine.replay(), asked, prompt)
    elif states.states:
        predict_states(engine.limits, states, workloads.seed)
    elif workloads.drafts:
        predict_drafts(engine.limits, workloads)
    else:
        predict_workloads(engine.limits, workloads)


if __name__ == "__main__":
    typer.run(flattened(main))
