"""Several stages compute several steps at once, each step with different sequences."""

from __future__ import annotations

from collections import deque
from itertools import chain, pairwise
from typing import Any

import pytest

from engine.link.messages import Cancel, Generate, SamplingParams
from engine.sequences.sequence import Sequence
from engine.step import VERIFY, Step
from tests.doubles.constraints import Allows
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting
from tests.doubles.engine.fake_runner import VOCAB_SIZE, expected_output, prompt_where
from tests.engine.rigs.rig import EOS, Rig, generate


def running(count: int, **settings: Any) -> tuple[Rig, list[Generate]]:
    """Make a rig with `count` requests whose prompts have been computed."""
    rig = Rig(max_batch_tokens=64, **settings)
    requests = [generate(str(n), [n, n, 1], max_tokens=12) for n in range(count)]
    for request in requests:
        rig.submit(request)
    while min(len(rig.link.tokens(str(n))) for n in range(count)) < 2:
        rig.step()
    return rig, requests


class Pipeline:
    """A device in simulated time: each stage takes a time per row, and computes one step at a
    time.
    """

    def __init__(self, rig: Rig, num_stages: int, seconds: float) -> None:
        self.rig = rig
        self.seconds = seconds
        self.free_at = [0.0] * num_stages
        self.over = deque[float]()
        rig.runner.takes, rig.runner.waits = self.launch, self.collect

    def launch(self, step: Step) -> None:
        now = self.rig.clock.now
        for index, free_at in enumerate(self.free_at):
            now = self.free_at[index] = max(now, free_at) + self.seconds * step.num_tokens
        self.over.append(now)

    def collect(self) -> None:
        self.rig.clock.now = max(self.rig.clock.now, self.over.popleft())


def rows_of(rig: Rig) -> list[list[str]]:
    """Run six steps; return the owners of each step's rows."""
    before = len(rig.runner.owners)
    rig.step(6)
    return [[one.request_id for one in owners] for owners in rig.runner.owners[before:]]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_each_stage_has_a_step_of_other_sequences(stages: int) -> None:
    rig, requests = running(6, stages=stages)
    steps = rows_of(rig)
    assert len(steps) == 6, "every turn launches one"
    assert {len(step) for step in steps} == {6 // stages}
    for together in zip(*(steps[n:] for n in range(stages)), strict=False):
        assert sorted(chain(*together)) == [str(n) for n in range(6)]
    rig.run()
    for request in requests:
        rig.expect_output(request)
    assert rig.runner.most_on_their_way == stages
    assert not any(row.is_pending for step in rig.runner.steps for row in step.rows)
    rig.expect_nothing_left()


@pytest.mark.parametrize(("steps", "faster"), [(1, 1.0), (4, 3.0)])
def test_stages_that_overlap_take_a_part_of_the_time(steps: int, faster: float) -> None:
    """Overlap the steps of stages. Positive control: with one pending step, four stages are no
    faster than one device.
    """
    took = []
    for num_stages, under_way in ((1, 1), (4, steps)):
        rig = Rig(max_batch_tokens=64, stages=under_way, num_blocks=200)
        Pipeline(rig, num_stages, 0.01 / num_stages)
        requests = [generate(str(n), [n, n, 1], max_tokens=40) for n in range(8)]
        for request in requests:
            rig.submit(request)
        began = rig.clock.now
        rig.run()
        took.append(rig.clock.now - began)
        for request in requests:
            rig.expect_output(request)
    assert faster <= took[0] / took[1] < 1.2 * faster


def test_one_sequence_alone_goes_from_stage_to_stage_and_back() -> None:
    """Step a single sequence from stage to stage: no other step can be launched meanwhile, and no
    message waits.
    """
    rig, [request] = running(1, stages=3)
    assert rows_of(rig) == [["0"], ["0"], ["0"]], "each is settled in a turn that launches none"
    rig.run()
    rig.expect_output(request)


def test_chunks_of_one_prompt_follow_each_other_through_the_stages() -> None:
    rig = Rig(max_batch_tokens=8, stages=3)
    request = generate("a", range(60), max_tokens=4)
    rig.submit(request)
    rig.step(5)
    assert len(rig.runner.steps) == 5
    assert len(rig.runner.on_their_way) == 2
    rig.run()
    rig.expect_output(request)


def test_a_late_one_is_taken_in_by_the_next_step() -> None:
    rig, requests = running(4, stages=2)
    late = generate("late", range(5), max_tokens=6)
    rig.submit(late)
    [first, *_] = rows_of(rig)
    assert "late" in first
    rig.run()
    for request in [*requests, late]:
        rig.expect_output(request)


def test_stops_and_cancels_of_sequences_under_way_leave_nothing() -> None:
    rig = Rig(max_batch_tokens=64, stages=3, num_blocks=24)
    stopping = prompt_where(EOS, 2)
    rig.submit(generate("stops", stopping, sampling=SamplingParams(max_tokens=8)))
    rig.submit(generate("goes", range(9), max_tokens=30))
    others = [generate(str(n), [n, 5, 6, 7], max_tokens=9) for n in range(4)]
    for request in others:
        rig.submit(request)
    rig.step(4)
    assert len(rig.runner.on_their_way) == 2, "the control: steps are under way"
    rig.link.say(Cancel("goes"))
    rig.run()
    assert rig.finished("goes").reason == "cancelled"
    assert rig.finished("stops").reason == "stop"
    assert rig.link.tokens("stops") == expected_output(stopping, 8, stops=[EOS])[:-1]
    for request in others:
        rig.expect_output(request)
    rig.expect_nothing_left()


def test_masks_are_made_for_tokens_that_are_all_known() -> None:
    masked = Allows(range(VOCAB_SIZE), VOCAB_SIZE)
    rig = Rig(max_batch_tokens=64, stages=2, constraint_of=lambda *_: masked)
    request = generate("a", range(6), max_tokens=6)
    rig.submit(request)
    rig.run()
    rig.expect_output(request)
    assert rig.core.components.counters.rows_left_out == 0
    launches = [event for event in rig.runner.events if event in ("forward", "sample")]
    assert all(one != other for one, other in pairwise(launches))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_drafts_of_stages_save_steps_and_change_no_answer(wrong: float, stages: int) -> None:
    """Draft in several stages, each of which still has a step with other sequences."""

    def right(sequence: Sequence, most: int) -> list[int]:
        return expected_output(sequence.token_ids.tolist(), most)

    steps = []
    for drafting in (None, ScriptedDrafting(right, VOCAB_SIZE, wrong)):
        rig = Rig(max_batch_tokens=64, stages=stages, drafting=drafting, max_running=24)
        requests = [generate(str(n), [n, n, 1], max_tokens=40) for n in range(6)]
        for request in requests:
            rig.submit(request)
        rig.run()
        for request in requests:
            rig.expect_output(request)
        assert rig.runner.most_on_their_way == stages
        steps.append(len(rig.runner.steps))
        rig.expect_nothing_left()
    assert any(row.kind is VERIFY for step in rig.runner.steps for row in step.rows)
    assert steps[1] < 0.7 * steps[0]
