"""The masks of rows with drafts: one for each sampled token, as far as masks are ready.

The answer equals that of one token at a time, however many masks are ready, and however late they
are.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from random import Random

import numpy as np
import pytest

from engine.drafting.draft import Draft
from engine.in_flight.masked_step import LEFT_OUT, MaskedStep
from engine.link.messages import SamplingParams
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import Scheduled, row_of, verify_row
from engine.sequences.sequence import Sequence
from engine.sequences.token_constraint import (
    ConstraintOf,
    MadeOnDemand,
    TokenConstraint,
    WantedMasks,
)
from engine.step import VERIFY, Bitmask, Sampled
from tests.doubles.constraints import Allows, HeldMasks, Script, Steps
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting
from tests.doubles.engine.fake_runner import VOCAB_SIZE as VOCAB
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.in_flight.test_masked_step import answer, bound
from tests.engine.rigs.hand_driven import sequence_of
from tests.engine.rigs.rig import Rig, generate

SCRIPT = [{5, 6}, {7}, {8, 9}, {1}]


class NotedForward:
    """A forward pass that records its masks, and samples 1, 2, 3..."""

    def __init__(self, num_samples: int) -> None:
        self.allowed: list[list[int] | None] = []
        self._num_samples = num_samples

    def sample(self, allowed: SequenceOf[Bitmask | None]) -> NotedForward:
        self.allowed = [None if one is None else tokens(one) for one in allowed]
        return self

    def skip(self) -> NotedForward:
        self._num_samples = 0
        return self

    def collect(self) -> list[Sampled]:
        return [Sampled(number) for number in range(1, self._num_samples + 1)]


class NotedMasks(MadeOnDemand):
    """A mask maker that records the requests for masks."""

    wanted: list[WantedMasks]

    def make(self, wanted: Iterable[WantedMasks]) -> MadeOnDemand:
        self.wanted = [*wanted]
        return self


def tokens(mask: Bitmask) -> list[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def running(batch_slot: int, constraint: TokenConstraint | None = None) -> Sequence:
    sequence = sequence_of([3, 4], block_ids=[batch_slot])
    sequence.batch_slot, sequence.num_computed = batch_slot, 1
    sequence.constraint = constraint
    return sequence


def step_with(drafts: list[int], most: int = 99) -> tuple[Scheduled, Script]:
    """Return a step of a row without a constraint, a row with drafts, and a one-token row with a
    constraint.
    """
    script = Script(SCRIPT, VOCAB, most)
    rows = [
        row_of(running(0), 1),
        verify_row(running(1, script), Draft(tuple(drafts), "own")),
        row_of(running(2, Allows({2}, VOCAB)), 1),
    ]
    return step_of(rows), script


def taken(scheduled: Scheduled) -> tuple[list[list[int] | None], list[int | None], NotedMasks]:
    """Compute the step; return the masks given to the sampler, the sampled values, and the requests
    for masks.
    """
    forward = NotedForward(sum(row.num_samples for row in scheduled.rows))
    masks = NotedMasks()
    step = MaskedStep(scheduled, forward, masks)
    step.ask()
    step.sample(0.0, 0.0)
    values = step.collect()
    assert all(value == LEFT_OUT for value in values if value.token_id is None)
    return forward.allowed, [value.token_id for value in values], masks


def by_sequence(scheduled: Scheduled, values: list[int | None]) -> dict[int, list[int | None]]:
    """Return the sampled values by batch slot."""
    left, found = iter(values), dict[int, list[int | None]]()
    for row in scheduled.rows:
        assert row.sequence.batch_slot is not None
        found[row.sequence.batch_slot] = [next(left) for _ in range(row.num_samples)]
    return found


@pytest.mark.parametrize(
    ("drafts", "most", "masks"),
    [
        ([5, 7, 8], 99, [[5, 6], [7], [8, 9], [1]]),
        ([5, 7, 3], 99, [[5, 6], [7], [8, 9], None]),
        ([4, 7, 8], 99, [[5, 6], None, None, None]),
        ([5, 7, 8, 1, 9], 99, [[5, 6], [7], [8, 9], [1], None, None]),
        ([5, 7, 8], 2, [[5, 6], [7], None, None]),
        ([], 99, [[5, 6]]),
    ],
    ids=["all", "third wrong", "first wrong", "over", "late", "none"],
)
def test_each_sample_has_its_mask(
    drafts: list[int], most: int, masks: list[list[int] | None]
) -> None:
    scheduled, script = step_with(drafts, most)
    allowed, values, asked = taken(scheduled)
    of_verify = by_sequence(scheduled, values)[1]
    places = [row.sequence.batch_slot for row in scheduled.rows if row.is_masked]
    assert allowed == ([*masks, [2]] if places[0] == 1 else [[2], *masks])
    assert [value is None for value in of_verify] == [mask is None for mask in masks]
    assert None not in [*by_sequence(scheduled, values)[0], *by_sequence(scheduled, values)[2]]
    wanted = {one.constraint: one.drafts for one in asked.wanted}
    assert wanted[script] == tuple(drafts)
    assert script.told == []


def test_a_row_whose_masks_are_late_is_left_out_with_all_its_samples() -> None:
    scheduled, script = step_with([5, 7])
    script.is_busy = True
    allowed, values, _ = taken(scheduled)
    assert [one for one in allowed if one is not None] == [[2]]
    assert len(allowed) == 4
    assert by_sequence(scheduled, values)[1] == [None] * 3


def test_a_row_that_is_over_needs_no_masks() -> None:
    scheduled, script = step_with([5, 7])
    [row] = [row for row in scheduled.rows if row.kind is VERIFY]
    row.sequence.let_go()
    allowed, _, asked = taken(scheduled)
    assert [one for one in allowed if one is not None] == [[2]]
    assert script not in [one.constraint for one in asked.wanted]


def looking_ahead(most: int) -> ConstraintOf:
    """Return a factory of constraints for requests with grammars, each with masks for up to `most`
    draft tokens.
    """

    def constraint_of(sampling: SamplingParams, flow: str) -> Steps | None:
        del flow
        return None if sampling.grammar is None else Steps(VOCAB, most)

    return constraint_of


def right(sequence: Sequence, most: int) -> list[int]:
    """Return the next `most` tokens of the sequence's right answer."""
    said, known = sequence.num_output, sequence.token_ids.tolist()
    if sequence.constraint is None:
        return expected_output(known, most)
    return answer(known[: sequence.prompt_len], said + most)[said:]


def drafting(wrong: float, seed: int) -> ScriptedDrafting:
    return ScriptedDrafting(right, VOCAB, wrong, often=0.8, random=Random(seed))


@pytest.mark.parametrize("overlap_scheduling", [False, True])
@pytest.mark.parametrize(("ahead", "wrong"), [(9, 0.0), (9, 0.4), (1, 0.1), (0, 0.0)])
def test_answers_are_those_of_one_token_at_a_time(
    *, ahead: int, wrong: float, overlap_scheduling: bool
) -> None:
    rig = Rig(
        constraint_of=looking_ahead(ahead),
        drafting=drafting(wrong, seed=ahead),
        overlap_scheduling=overlap_scheduling,
        num_blocks=256,
        max_running=24,
        max_batch_tokens=48,
    )
    for number in range(6):
        make = bound if number % 3 else generate
        rig.submit(make(str(number), range(number, number + 5), max_tokens=20))
    rig.run()
    for number in range(6):
        expected = answer if number % 3 else expected_output
        assert rig.link.tokens(str(number)) == expected(range(number, number + 5), 20)
    assert (len(rig.runner.steps) < 20) is (ahead > 0), "who has no masks ahead takes each step"
    rig.expect_nothing_left()


@pytest.mark.parametrize("overlap_scheduling", [False, True])
@pytest.mark.parametrize(
    "held", [{1}, {*range(2, 10)}, {*range(3, 20)}], ids=["one", "some", "most"]
)
def test_masks_that_come_late_change_no_answer(*, held: set[int], overlap_scheduling: bool) -> None:
    masks = HeldMasks(held=held)
    rig = Rig(
        constraint_of=looking_ahead(9),
        masks=masks,
        drafting=drafting(0.2, seed=1),
        overlap_scheduling=overlap_scheduling,
        num_blocks=256,
        max_running=24,
        max_batch_tokens=48,
    )
    rig.submit(bound("late", range(6), 20))
    rig.submit(generate("free", range(9, 14), max_tokens=40))
    for _ in range(12):
        rig.step(3)
        masks.release()
        masks.held = held
    masks.held = set()
    rig.run()
    assert rig.link.tokens("late") == answer(range(6), 20)
    assert rig.link.tokens("free") == expected_output(range(9, 14), 40)
    assert rig.core.components.counters.rows_left_out > 0
    rig.expect_nothing_left()
