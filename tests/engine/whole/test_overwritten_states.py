"""Sequences that wait for state slots get right tokens; decodes overwrite their own states.

Each sequence then has one slot, and a row that is computed again has no state to start from.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.link.messages import SamplingParams
from engine.startup.loading import OpenedModel, open_model
from tests.doubles.constraints import HeldMasks, steps_of
from tests.doubles.engine.fake_runner import expected_output
from tests.doubles.engine.memory_link import MemoryLink
from tests.doubles.engine.stateful_runner import StatefulRunner
from tests.engine.conftest import MakeCheckpoint
from tests.engine.in_flight.test_masked_step import bound
from tests.engine.rigs.hand_driven import random_prompt
from tests.engine.rigs.rig import Rig, generate
from tests.engine.whole.test_windows import engine_of, run

both = pytest.mark.parametrize("overlap_scheduling", [False, True])
SLOTS = 7  # six usable slots, for three sequences of two each


def rig_of(*, num_states: int = SLOTS, overlap_scheduling: bool = False) -> Rig:
    rig = Rig(
        constraint_of=steps_of,
        masks=HeldMasks(),
        num_states=num_states,
        overlap_scheduling=overlap_scheduling,
    )
    assert isinstance(rig.runner, StatefulRunner)
    return rig


def written_in_place(rig: Rig) -> int:
    assert isinstance(rig.runner, StatefulRunner)
    return rig.runner.num_in_place


def most_rows(rig: Rig) -> int:
    return max(len(step.rows) for step in rig.runner.steps)


@both
@pytest.mark.parametrize(("num_states", "rows"), [(SLOTS, 4), (63, 8)])
def test_more_sequences_run_than_have_two_slots(
    num_states: int, rows: int, overlap_scheduling: bool
) -> None:
    """Run more sequences than have two slots each. Positive control: with enough slots, each row
    writes another slot than it reads.
    """
    rig = rig_of(num_states=num_states, overlap_scheduling=overlap_scheduling)
    requests = [generate(str(n), range(n, n + 5), max_tokens=30) for n in range(8)]
    for request in requests:
        rig.submit(request)
    rig.run()
    for request in requests:
        rig.expect_output(request)
    assert (written_in_place(rig) > 0) is (num_states == SLOTS)
    assert most_rows(rig) >= rows
    rig.expect_nothing_left()


@both
@pytest.mark.parametrize("at", range(8, 26, 3))
def test_after_a_launch_that_failed_they_start_over(at: int, overlap_scheduling: bool) -> None:
    rig = rig_of(overlap_scheduling=overlap_scheduling)
    requests = [generate(str(n), range(n, n + 5), max_tokens=30) for n in range(8)]
    for request in requests:
        rig.submit(request)
    rig.step(at)
    assert written_in_place(rig) > 0
    rig.runner.raising = [MemoryError()]
    rig.run()
    for request in requests:
        rig.expect_output(request)
    assert rig.core.stats().preemptions > 0
    rig.expect_nothing_left()


@both
def test_rows_that_cannot_sample_start_over_too(overlap_scheduling: bool) -> None:
    """Restart rows that cannot sample, since memory is short while a grammar's mask is awaited.

    A sequence with a grammar never overwrites the state that it reads.
    """
    rig = rig_of(overlap_scheduling=overlap_scheduling)
    rig.submit(bound("fails", range(6), 30))
    free = [generate(str(n), range(n, n + 5), max_tokens=30) for n in range(5)]
    for request in free:
        rig.submit(request)
    rig.step(14)
    assert written_in_place(rig) > 0
    rig.runner.raising_late = [MemoryError()]
    rig.run()
    for n, request in enumerate(free):
        assert rig.link.tokens(request.request_id) == expected_output(range(n, n + 5), 30)
    assert rig.failed("fails").code == "engine_failure"
    rig.expect_nothing_left()


def answers(opened: OpenedModel, num_states: int) -> list[list[int]]:
    link = MemoryLink()
    core = engine_of(replace(opened, num_states=num_states), link)
    sampling = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    for chat in range(4):
        prompt = random_prompt(20 + 7 * chat, seed=chat)
        size = opened.welcome.block_size
        link.say(generate(str(chat), prompt, sampling=sampling, block_size=size))
    run(core)
    return [link.tokens(str(chat)) for chat in range(4)]


@pytest.mark.parametrize("name", ["qwen3.5", "nemotron-h"])
def test_a_model_says_the_same(checkpoint: MakeCheckpoint, name: str) -> None:
    config = EngineConfig.of(
        model_dir=str(checkpoint(name).model_dir),
        socket="",
        device="cpu",
        cache_tokens=1024,
        max_running=4,
        max_batch_tokens=60,
    )
    opened = open_model(config)
    with closing(opened.grammars):
        assert answers(opened, num_states=5) == answers(opened, opened.num_states)
