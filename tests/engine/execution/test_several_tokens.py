"""A row that verifies given tokens samples the same tokens as plain decoding."""

from __future__ import annotations

import msgspec
import pytest

from engine.drafting.draft import Draft
from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.runner import GraphRunner
from engine.execution.row_fields import samples_of
from engine.execution.verified_rows import by_token
from engine.link.messages import SamplingParams
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import ScheduledRow, row_of, verify_row
from engine.sequences.sequence import Sequence
from engine.step import DECODE, PREFILL, VERIFY, Sampled, Step
from tests.doubles.engine.device.rerun import Rerun
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    random_prompt,
    sampling,
    with_graphs,
)

WISHES = {
    "greedy": sampling(8),
    "drawn": sampling(8, 1.0, seed=1),
    "filtered": sampling(8, 0.8, seed=2, top_k=20, top_p=0.9),
    "penalised": sampling(8, 0.8, seed=3, frequency_penalty=1.5, repetition_penalty=1.2),
    "adjusted": sampling(
        8, 1.0, seed=5, logit_bias={7: 9.0}, min_tokens=3, stop_token_ids=[7], num_logprobs=2
    ),
}
PROMPT = random_prompt(18)


def driven(checkpoint: MakeCheckpoint, *, graphs: bool = False) -> HandDriven:
    runner = build_runner(checkpoint("llama").model_dir)
    return HandDriven(runner, with_graphs(runner, Rerun(), max_tokens=64) if graphs else None)


def verifying(sequence: Sequence, given: list[int]) -> ScheduledRow:
    """Return a row of the sequence's last token and the given draft tokens."""
    return verify_row(sequence, Draft(tuple(given), "own"))


def plainly(checkpoint: MakeCheckpoint, wish: SamplingParams) -> list[Sampled]:
    """Return the samples of a prompt and of three one-token steps."""
    one_by_one = driven(checkpoint)
    sequence = one_by_one.add(PROMPT, wish)
    first = one_by_one.step((sequence, len(PROMPT)))
    return first + [one_by_one.step((sequence, 1))[0] for _ in range(3)]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("wish", WISHES)
def test_three_tokens_of_one_row_are_those_of_three_steps(
    checkpoint: MakeCheckpoint, wish: str, graphs: bool
) -> None:
    expected = plainly(checkpoint, WISHES[wish])
    at_once = driven(checkpoint, graphs=graphs)
    sequence, decode = at_once.add(PROMPT, WISHES[wish]), at_once.add(random_prompt(5, seed=5))
    chunk = at_once.add(random_prompt(9, seed=9))
    [alone, first] = at_once.step((decode, 5), (sequence, len(PROMPT)))
    assert [first.token_id, decode.num_output] == [expected[0].token_id, 1]
    given = [int(value.token_id or 0) for value in expected[1:3]]
    step = step_of([row_of(decode, 1), verifying(sequence, given), row_of(chunk, 9)]).step
    read_back = msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=Step)
    values = at_once.launcher.launch(read_back).collect()
    assert [value.token_id for value in values[1:4]] == [value.token_id for value in expected[1:]]
    for value, plain in zip(values[1:4], expected[1:], strict=True):
        assert (value.logprobs is None) is (plain.logprobs is None)
        if value.logprobs is not None and plain.logprobs is not None:
            assert value.logprobs.chosen == pytest.approx(plain.logprobs.chosen, abs=1e-4)
            assert [token for token, _ in value.logprobs.top] == [
                token for token, _ in plain.logprobs.top
            ]
    neighbours = [alone.token_id, values[0].token_id, values[4].token_id]
    model = checkpoint("llama")
    assert neighbours == [
        *model.greedy(random_prompt(5, seed=5), 2),
        *model.greedy(random_prompt(9, seed=9), 1),
    ]


def test_a_wish_changes_what_is_sampled_three_steps_on(checkpoint: MakeCheckpoint) -> None:
    """Compare requests with different sampling (positive control): all answers differ, so none
    decodes greedily.
    """
    said = {name: [one.token_id for one in plainly(checkpoint, WISHES[name])] for name in WISHES}
    assert len({tuple(tokens[1:]) for tokens in said.values()}) == len(WISHES)


def test_a_given_token_that_is_wrong_leaves_the_values_before_it(
    checkpoint: MakeCheckpoint,
) -> None:
    expected = plainly(checkpoint, WISHES["drawn"])
    at_once = driven(checkpoint)
    sequence = at_once.add(PROMPT, WISHES["drawn"])
    at_once.step((sequence, len(PROMPT)))
    right = int(expected[1].token_id or 0)
    step = step_of([verifying(sequence, [right, 299 - int(expected[2].token_id or 0)])])
    values = at_once.launcher.launch(step.step).collect()
    assert [one.token_id for one in values[:2]] == [one.token_id for one in expected[1:3]]
    assert len(values) == 3


def test_where_the_logits_of_a_batch_are_taken(checkpoint: MakeCheckpoint) -> None:
    by_hand = driven(checkpoint)
    sequences = [by_hand.add(random_prompt(length, seed=length)) for length in (1, 4, 6, 9)]
    for sequence in sequences[1:3]:
        sequence.num_computed = sequence.num_tokens - 1
    scheduled = [
        row_of(sequences[0], 1),
        verifying(sequences[1], [8, 9]),
        row_of(sequences[3], 5),
        verifying(sequences[2], [7]),
    ]
    step = step_of(scheduled).step
    rows = by_token(step).rows
    batch = by_hand.batch([*rows])
    assert batch.layout.num_decodes == 6, "each token of a row of drafts is a decode"
    assert batch.layout.context_lens.tolist() == [1, 4, 5, 6, 6, 7, 5]
    assert batch.outputs.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.output_slots.tolist() == [0, 1, 1, 1, 2, 2]
    assert batch.pending.tolist() == [], "given tokens are known"
    assert batch.token_ids[1:4].tolist() == [sequences[1].tokens[3], 8, 9]
    samples = [(one.batch_slot, one.end, one.new is not None) for one in samples_of(rows)]
    ends = [(0, 1, True), (1, 4, True), (1, 5, False), (1, 6, False), (2, 6, True), (2, 7, False)]
    assert samples == ends
    plain = step_of(scheduled[:1]).step
    assert by_token(plain) is plain
    read_back = msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=Step)
    assert [row.kind for row in read_back.rows] == [DECODE, VERIFY, VERIFY, PREFILL]
    assert step.num_tokens == 11


def test_a_room_holds_as_many_samples_as_it_has_rows_or_more(checkpoint: MakeCheckpoint) -> None:
    assert GraphBucket(0, 64, 2).holds(GraphBucket(0, 9, 2))
    assert not GraphBucket(0, 64, 2).holds(GraphBucket(0, 9, 2, more_samples=1))
    assert GraphBucket(0, 64, 2, more_samples=1).holds(GraphBucket(0, 9, 2, more_samples=1))
    plain, several = GraphBucket(8, 64, 2).sizes(), GraphBucket(8, 64, 2, more_samples=6).sizes()
    wider = {name for name, size in several.items() if size != plain[name]}
    assert wider == {"outputs", "output_slots", "temperature", "keys"}
    launcher = driven(checkpoint, graphs=True).launcher
    assert isinstance(launcher, GraphRunner)
    found = launcher.steps.find(GraphBucket(1, 9, 2, more_samples=4))
    assert found is not None
    assert found.inputs.bucket == GraphBucket(8, 64, 2)
    assert launcher.steps.find(GraphBucket(24, 64, 8, more_samples=1)) is None, (
        "left to eager steps"
    )
