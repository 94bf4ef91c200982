"""Captured graphs give the results of eager steps, whatever padding they need."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.buckets import MIN_PREFILLS
from engine.execution.runner import ModelRunner
from engine.link.messages import SamplingParams
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import row_of
from engine.sequences.sequence import Sequence
from tests.doubles.engine.device.rerun import Rerun
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    output,
    random_prompt,
    sampling,
    with_graphs,
)

WISHES = [
    sampling(8),
    sampling(8, 1.0, seed=1),
    sampling(8, 0.8, seed=2, top_k=20),
    sampling(8, 1.0, seed=4, repetition_penalty=1.3, presence_penalty=0.5, num_logprobs=3),
    sampling(8, 1.0, seed=5, logit_bias={7: 2.0, 9: -100.0}, min_tokens=4, num_logprobs=0),
]


def graphed(runner: ModelRunner, max_tokens: int = 64) -> HandDriven:
    return HandDriven(runner, with_graphs(runner, Rerun(), max_tokens=max_tokens))


def run(driven: HandDriven, prompts: list[list[int]], wishes: list[SamplingParams]) -> list[Any]:
    """Run all requests together, decodes before prompts, with prompts in chunks of up to 20
    tokens.
    """
    sequences = [driven.add(prompt, wish) for prompt, wish in zip(prompts, wishes, strict=True)]
    while unfinished := [s for s in sequences if s.num_output < s.sampling.max_tokens]:
        driven.step(*((s, min(s.num_tokens - s.num_computed, 20)) for s in unfinished))
    return [output(sequence) for sequence in sequences]


@pytest.mark.parametrize("name", ["llama3-rope", "qwen2", "qwen3", "mistral", "qwen3.5"])
def test_greedy_tokens_are_those_of_eager_steps(checkpoint: MakeCheckpoint, name: str) -> None:
    prompts = [random_prompt(length, seed=length) for length in (1, 5, 33, 50)]
    wishes = [sampling(12)] * 4
    runner = build_runner(checkpoint(name).model_dir)
    expected = run(HandDriven(build_runner(checkpoint(name).model_dir)), prompts, wishes)
    assert run(graphed(runner), prompts, wishes) == expected
    assert expected[3] == checkpoint(name).most_likely(prompts[3], expected[3])


@pytest.mark.parametrize("name", ["gpt-oss", "gemma3", "gemma4-shared"])
def test_freed_windows_are_found_in_graphs_too(checkpoint: MakeCheckpoint, name: str) -> None:
    """Run prompts longer than their windows in several steps, beside decodes of other sequences."""
    prompts = [random_prompt(length, seed=length) for length in (1, 33, 90, 131)]
    wishes = [sampling(20)] * 4
    runner = build_runner(checkpoint(name).model_dir, frees_windows=True)
    assert runner.rings is not None
    said = run(graphed(runner), prompts, wishes)
    assert said == run(HandDriven(build_runner(checkpoint(name).model_dir)), prompts, wishes)
    assert said[3] == checkpoint(name).most_likely(prompts[3], said[3])


@pytest.mark.parametrize("wishes", [WISHES[:2] * 2, WISHES[:4], WISHES[1:]], ids=str)
def test_rows_with_any_sampling_parameters_choose_as_in_eager_steps(
    checkpoint: MakeCheckpoint, wishes: list[SamplingParams]
) -> None:
    prompts = [random_prompt(10 + length, seed=length) for length in range(4)]
    model_dir = checkpoint("llama").model_dir
    expected = run(HandDriven(build_runner(model_dir)), prompts, wishes)
    assert run(graphed(build_runner(model_dir)), prompts, wishes) == expected


def test_small_steps_are_replayed_and_large_ones_are_not(checkpoint: MakeCheckpoint) -> None:
    runner = build_runner(checkpoint("llama").model_dir)
    capture = Rerun()
    graphs = with_graphs(runner, capture, max_tokens=64)
    # Buckets of decodes alone have 1, 2, 4, 8, 16 or 24 rows. Buckets of 64 tokens have up to 1, 2
    # or 8 prompt rows, beside 0, 8, 16 or 24 decodes.
    assert capture.captured == 6 + 3 * 4
    needs = [(1,), (3,), (9,), (24,), (25,), (0, 9, 1), (9, 9, 2), (9, 64, 5), (9, 65, 1)]
    found = [graphs.steps.find(GraphBucket(*need)) for need in needs]
    buckets = [None if step is None else step.inputs.bucket for step in found]
    of_64 = (64, MIN_PREFILLS)
    assert buckets == [
        GraphBucket(1),
        GraphBucket(4),
        GraphBucket(16),
        GraphBucket(24),
        None,
        GraphBucket(0, 64, 1),
        GraphBucket(16, 64, 2),
        GraphBucket(16, *of_64),
        None,
    ]
    assert graphs.steps.find(GraphBucket(0, 64, MIN_PREFILLS + 1)) is None


def pending(driven: HandDriven, sequence: Sequence) -> None:
    """Launch a step of one sequence, and count its token as pending."""
    row = row_of(sequence, sequence.length - sequence.num_computed)
    driven.launcher.launch(step_of([row]).step)
    sequence.num_computed, sequence.num_pending = row.end, sequence.num_pending + 1


@pytest.mark.parametrize("max_tokens", [1, 64])
@pytest.mark.parametrize("wish", [WISHES[0], WISHES[1], WISHES[3]], ids=str)
def test_a_token_that_never_visits_the_host_feeds_the_next_step(
    checkpoint: MakeCheckpoint, wish: SamplingParams, max_tokens: int
) -> None:
    model_dir = checkpoint("llama").model_dir
    prompt = random_prompt(18)
    plain = HandDriven(build_runner(model_dir))
    expected = plain.add(prompt, wish)
    plain.generate(expected)
    for driven in (
        graphed(build_runner(model_dir), max_tokens),
        HandDriven(build_runner(model_dir)),
    ):
        sequence = driven.add(prompt, wish)
        pending(driven, sequence)
        step = step_of([row_of(sequence, 1)]).step
        assert step.rows[0].is_pending
        assert sequence.num_tokens == len(prompt)
        [sampled] = driven.launcher.launch(step).collect()
        assert sampled.token_id == output(expected)[1]


def test_a_row_that_is_not_finite_yields_no_token_and_spares_the_others(
    checkpoint: MakeCheckpoint,
) -> None:
    runner = build_runner(checkpoint("llama").model_dir)
    with torch.inference_mode():
        runner.decoder.parameters.embedding[299] = float("nan")
    driven = graphed(runner)
    good, bad = driven.add(random_prompt(20, vocab_size=299)), driven.add([7, 299])
    samples = driven.step((bad, 2), (good, 20))
    assert samples[0].token_id is None
    assert [samples[1].token_id] == checkpoint("llama").greedy(random_prompt(20, 0, 299), 1)


def test_a_seat_that_changes_hands_reads_its_new_blocks(checkpoint: MakeCheckpoint) -> None:
    """Use one batch slot for sequences with different blocks in turn, so that its block table is
    rewritten.
    """
    driven = graphed(build_runner(checkpoint("llama").model_dir))
    for seed in range(4):
        prompt = random_prompt(30, seed=seed)
        sequence = driven.add(prompt, sampling(20))
        sequence.batch_slot = 3
        driven.generate(sequence, chunk=20)
        said = output(sequence)
        assert said == checkpoint("llama").most_likely(prompt, said)


def test_blocks_that_come_later_are_sent_when_they_come(checkpoint: MakeCheckpoint) -> None:
    driven = graphed(build_runner(checkpoint("llama").model_dir))
    prompt = random_prompt(30)
    sequence = driven.add(prompt, sampling(40))
    lease = sequence.lease
    assert lease is not None
    every = lease.block_ids
    while sequence.num_output < 40:
        lease.num_blocks = -(-sequence.num_tokens // 16)
        lease.block_ids = every[: lease.num_blocks]
        driven.step((sequence, sequence.num_tokens - sequence.num_computed))
    assert output(sequence) == checkpoint("llama").most_likely(prompt, output(sequence))
