"""Steps serialised to bytes can be computed by a runner that shares nothing else.

An engine serves a conversation under memory pressure: prompts in chunks, decodes with pending
tokens, preempted sequences that return, shared prefixes, and copies within the pool. A second
runner with its own weights, pool and tables gets only the bytes of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from engine.core import EngineCore
from engine.execution.runner import ModelRunner
from engine.execution.shared_prefixes import SharedPrefixes, SharingRule
from engine.sampling.results import LaunchedSample
from engine.sampling.sampler import Sampler
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import EngineLimits, LoadedRunner, assemble
from engine.step import PREFILL, Bitmask, Forward, Launched, Row, Runner, Sampled, Step
from kernels.ops import torch_ops
from tests.doubles.engine.device.rerun import Rerun
from tests.doubles.engine.memory_link import MemoryLink
from tests.doubles.engine.welcomes import welcome_of
from tests.doubles.kernels.sharing_checker import SharingChecker
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import (
    BLOCK_SIZE,
    EVERY_WISH,
    build_runner,
    random_prompt,
    with_graphs,
)
from tests.engine.rigs.rig import generate

NUM_BLOCKS, CHUNK, RUNNING = 18, 40, 6
RULE = SharingRule(BLOCK_SIZE, 2**26, BLOCK_SIZE, 4)  # sharing even one block pays


@dataclass(frozen=True, slots=True)
class NotedSampler(Sampler):
    """A sampler that records its logits."""

    seen: list[Tensor] = field(default_factory=list)

    def launch(
        self,
        logits: Tensor,
        rows: Sequence[Row],
        inputs: Tensor,
        allowed: Sequence[Bitmask | None] = (),
    ) -> LaunchedSample:
        self.seen.append(logits.clone())
        return Sampler.launch(self, logits, rows, inputs, allowed)


@dataclass
class Computed:
    """A runner, the logits from which it sampled, and the number of shared reads."""

    eager: ModelRunner
    runner: Runner
    seen: list[Tensor]
    sharing: SharingChecker


def computed_by(model_dir: Path, graph_tokens: int) -> Computed:
    """Make a separate runner; steps of up to `graph_tokens` tokens go through graphs."""
    checker = SharingChecker(RULE.most_rows)
    ops = replace(torch_ops(), paged_attention=checker)
    eager = build_runner(model_dir, NUM_BLOCKS + 1, ops=ops)
    sampler = NotedSampler(eager.sampler.planner, eager.sampler.ops, eager.sampler.tables)
    eager = replace(eager, prefixes=SharedPrefixes(RULE), sampler=sampler)
    runner = with_graphs(eager, Rerun(), max_tokens=graph_tokens) if graph_tokens else eager
    checker.shared = 0
    return Computed(eager, runner, sampler.seen, checker)


@dataclass(frozen=True)
class Collected:
    """A pending step that records its samples."""

    launched: Launched
    sampled: list[list[Sampled]]

    def collect(self) -> list[Sampled]:
        self.sampled.append(self.launched.collect())
        return self.sampled[-1]


@dataclass
class Written:
    """A runner that records each step and its bytes."""

    runner: Runner
    steps: list[Step] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    sampled: list[list[Sampled]] = field(default_factory=list)

    def launch(self, step: Step) -> Launched:
        self.steps.append(step)
        self.frames.append(msgspec.msgpack.encode(step))
        return Collected(self.runner.launch(step), self.sampled)

    def launch_forward(self, step: Step) -> Forward:
        raise AssertionError("nobody has a grammar here")


def serve(runner: Runner) -> EngineCore:
    """Serve requests that arrive one after the other, most with a shared prefix."""
    link, welcome = (
        MemoryLink(),
        welcome_of(300, 1024, (1,), block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS),
    )
    core = assemble(
        LoadedRunner(runner, welcome, NUM_BLOCKS, MemoryError),
        link,
        EngineLimits(StepLimits(CHUNK, RUNNING), QueueLimits(), 10.0, overlap_scheduling=True),
    )
    common = random_prompt(40, seed=9)
    for number in range(14):
        prompt = common[: 40 - number % 3] + random_prompt(4 + 5 * number, seed=number)
        wish = msgspec.structs.replace(EVERY_WISH[number % len(EVERY_WISH)], max_tokens=20)
        link.say(generate(str(number), prompt, sampling=wish, block_size=BLOCK_SIZE))
        core.step()
    while not core.is_idle:
        core.step()
    return core


def expect_all_kinds(steps: list[Step], core: EngineCore) -> None:
    """Check that the conversation had every kind of step."""
    rows = [row for step in steps for row in step.rows]
    assert any(row.kind is PREFILL and row.start and not row.samples for row in rows)
    assert any(row.is_pending for row in rows)
    assert any(row.first_block and row.block_ids for row in rows), "a table that grew"
    assert any(step.moves for step in steps)
    assert core.components.scheduler.active.num_preemptions
    leases_of_seat = {(row.batch_slot, row.lease_id) for row in rows}
    assert len(leases_of_seat) > len({batch_slot for batch_slot, _ in leases_of_seat})


@pytest.mark.parametrize("graph_tokens", [0, 64], ids=["eager", "recorded"])
def test_a_second_runner_computes_the_same_from_bytes_alone(
    checkpoint: MakeCheckpoint, graph_tokens: int
) -> None:
    model_dir = checkpoint("llama").model_dir
    first, second = computed_by(model_dir, graph_tokens), computed_by(model_dir, graph_tokens)
    written = Written(first.runner)
    core = serve(written)
    expect_all_kinds(written.steps, core)
    del core
    sampled = []
    for frame in written.frames:
        step = msgspec.msgpack.decode(frame, type=Step)
        sampled.append(second.runner.launch(step).collect())
    assert sampled == written.sampled
    assert sum(map(len, sampled)) > 250
    assert first.seen
    assert all(torch.equal(a, b) for a, b in zip(first.seen, second.seen, strict=True))
    assert torch.equal(first.eager.pool.tensor[:-1], second.eager.pool.tensor[:-1])
    assert first.sharing.shared == second.sharing.shared > 0


def test_a_step_that_is_lost_would_be_seen(checkpoint: MakeCheckpoint) -> None:
    model_dir = checkpoint("llama").model_dir
    first, second = computed_by(model_dir, 0), computed_by(model_dir, 0)
    written = Written(first.runner)
    serve(written)
    compute(second.runner, written.frames[:5])
    with pytest.raises(RuntimeError, match=r"tokens of batch slot \d are missing"):
        compute(second.runner, written.frames[6:])


def compute(runner: Runner, frames: Sequence[bytes]) -> None:
    for frame in frames:
        runner.launch(msgspec.msgpack.decode(frame, type=Step)).collect()
