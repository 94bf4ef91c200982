"""Whole steps, compared with `transformers`: greedy tokens, log-probabilities, copies, and the rows
that sample.
"""

from __future__ import annotations

from collections.abc import Sequence as Series
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from engine.link.event_messages import TokenLogprobs
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import row_of
from engine.sequences.sequence import Sequence
from engine.step import Step
from storage.move import Move, Tier, TokenCopy
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import RECIPES
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    hold,
    output,
    random_prompt,
    sampling,
)
from tests.examples import in_the_zoo

TOLERANCE = 1e-4
ROUNDS = 64
# Recipes whose steps equal those of another recipe. `tests/engine/models/forward/test_decoder.py`
# compares the logits of all recipes, also for prompts in chunks of one token.
ALIKE = (
    *("llama3-rope", "llama-linear-rope", "llama-biases", "llama-sharded", "mistral", "qwen2"),
    *("qwen3-yarn", "qwen2-window", "qwen3-biases", "granite-moe", "ministral3", "smollm3"),
    *("seed-oss", "cwm", "olmo2", "olmo3", "exaone4", "olmoe", "qwen2-moe", "dots1"),
    *("deepseek-v2", "granite-shared"),
)


def driven_by_hand(checkpoint: MakeCheckpoint, name: str) -> HandDriven:
    return HandDriven(build_runner(checkpoint(name).model_dir))


@pytest.mark.parametrize(
    "name", [*(one for one in RECIPES if one not in ALIKE), *in_the_zoo(*ALIKE)]
)
def test_64_greedy_tokens_and_logprobs_are_those_of_transformers(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    driven = driven_by_hand(checkpoint, name)
    prompt = random_prompt(37)
    sequence = driven.add(prompt, sampling(max_tokens=ROUNDS, num_logprobs=0))
    reported = driven.generate(sequence)
    tokens = output(sequence)
    logprobs = checkpoint(name).logits(prompt + tokens[:-1])[-ROUNDS:].log_softmax(-1)
    assert tokens == logprobs.argmax(-1).tolist(), "and so each follows from those before it"
    wanted = logprobs[torch.arange(ROUNDS), torch.tensor(tokens)]
    found = torch.tensor([one.chosen for one in reported if one is not None])
    assert (found - wanted).abs().max() < TOLERANCE


def mixed_run(driven: HandDriven, sequences: list[Sequence], budget: int) -> None:
    """Run decodes first, then prompts in chunks within a token budget, as a scheduler would."""
    while unfinished := [s for s in sequences if s.num_output < s.sampling.max_tokens]:
        work, left = [], budget
        for sequence in sorted(unfinished, key=lambda s: s.num_tokens - s.num_computed > 1):
            new = min(sequence.num_tokens - sequence.num_computed, left)
            if new > 0:
                work.append((sequence, new))
                left -= new
        driven.step(*work)


@pytest.mark.parametrize("name", ["llama3-rope", "qwen2-window", "qwen3", "mistral", "gpt-oss"])
@pytest.mark.parametrize("budget", [7, 64])
def test_batches_of_prompts_and_decodes_give_the_same_tokens(
    checkpoint: MakeCheckpoint, name: str, budget: int
) -> None:
    driven = driven_by_hand(checkpoint, name)
    prompts = [random_prompt(length, seed=length) for length in (1, 16, 29, 50)]
    sequences = [driven.add(prompt, sampling(max_tokens=12)) for prompt in prompts]
    mixed_run(driven, sequences, budget)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert len(output(sequence)) == 12
        assert output(sequence) == checkpoint(name).most_likely(prompt, output(sequence))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt-oss", "gemma2", "gemma3"])
def test_logprobs_are_those_of_transformers(checkpoint: MakeCheckpoint, name: str) -> None:
    driven = driven_by_hand(checkpoint, name)
    prompt = random_prompt(21)
    # Temperature, penalty and bias change the chosen token, but not the reported log-probabilities.
    wish = sampling(
        8, 0.7, seed=3, num_logprobs=5, presence_penalty=1.0, logit_bias={9: 3.0}, top_p=0.9
    )
    sequence = driven.add(prompt, wish)
    reported = [logprobs for logprobs in driven.generate(sequence, chunk=30) if logprobs]
    expected = checkpoint(name).logits([*prompt, *output(sequence)]).log_softmax(-1)
    assert len(reported) == 8
    for step, logprobs in enumerate(reported):
        check_logprobs(logprobs, expected[len(prompt) - 1 + step], output(sequence)[step])


def check_logprobs(got: TokenLogprobs, expected: torch.Tensor, chosen: int) -> None:
    assert got.chosen == pytest.approx(float(expected[chosen]), abs=TOLERANCE)
    best = expected.topk(5)
    assert [token for token, _ in got.top] == best.indices.tolist()
    assert [value for _, value in got.top] == pytest.approx(best.values.tolist(), abs=TOLERANCE)


def test_a_row_that_ends_before_the_last_token_samples_nothing(
    checkpoint: MakeCheckpoint,
) -> None:
    driven = driven_by_hand(checkpoint, "llama")
    unfinished, whole = driven.add(random_prompt(30)), driven.add(random_prompt(9, seed=1))
    assert driven.step((unfinished, 20)) == []
    assert len(driven.step((unfinished, 5), (whole, 9))) == 1
    assert unfinished.num_output == 0
    assert output(whole) == checkpoint("llama").greedy(random_prompt(9, seed=1), 1)
    assert len(driven.step((unfinished, 5))) == 1


@dataclass
class RecordingMover:
    """A mover that records moves, and whether the pool had already been written."""

    pool: torch.Tensor
    seen: list[tuple[list[Move], bool]] = field(default_factory=list)

    def execute(self, moves: Series[Move]) -> None:
        self.seen.append((list(moves), bool(self.pool.any())))

    def copy_tokens(self, copies: Series[TokenCopy]) -> None:
        raise AssertionError(f"no copy of tokens is expected: {copies}")


def test_moves_are_executed_before_the_rows_are_computed(checkpoint: MakeCheckpoint) -> None:
    runner = build_runner(checkpoint("llama").model_dir)
    mover = RecordingMover(runner.pool.tensor)
    runner = replace(runner, mover=mover)
    driven = HandDriven(runner)
    move = Move(Tier.DEVICE, 3, Tier.DEVICE, 5)
    sequence = driven.add(random_prompt(5))
    runner.launch(step_of([row_of(sequence, 5)], [move]).step).collect()
    assert mover.seen == [([move], False)]
    assert runner.pool.tensor.any()


def test_a_step_of_moves_alone_is_a_step(checkpoint: MakeCheckpoint) -> None:
    runner = build_runner(checkpoint("llama").model_dir)
    runner.pool.tensor[3] = 1.0
    launched = runner.launch(Step((), (Move(Tier.DEVICE, 3, Tier.DEVICE, 5),)))
    assert launched.collect() == []
    assert bool((runner.pool.tensor[5] == 1.0).all())


def test_a_copied_block_reads_like_the_original(checkpoint: MakeCheckpoint) -> None:
    """Let a second sequence continue after tokens copied from part of the first sequence's
    block.
    """
    driven = driven_by_hand(checkpoint, "qwen3")
    prompt = random_prompt(14)
    first = driven.add(prompt, sampling(2))
    driven.generate(first)
    second = driven.add([*prompt[:10], *random_prompt(6, seed=5)], sampling(4))
    assert first.lease is not None
    assert second.lease is not None
    copy = Move(Tier.DEVICE, int(first.lease.blocks[0]), Tier.DEVICE, int(second.lease.blocks[0]))
    second.num_computed = 10
    launched = driven.runner.launch(step_of([row_of(second, 6)], [copy]).step)
    expected = checkpoint("qwen3").greedy([int(token) for token in second.token_ids], 1)
    assert [sample.token_id for sample in launched.collect()] == expected


def poisoned(driven: HandDriven, token_id: int) -> None:
    """Make every activation of one input token NaN, as a fault in memory would."""
    with torch.inference_mode():
        driven.runner.decoder.parameters.embedding[token_id] = float("nan")


def test_a_row_with_nan_fails_alone(checkpoint: MakeCheckpoint) -> None:
    driven = driven_by_hand(checkpoint, "llama")
    poisoned(driven, 299)
    good = [random_prompt(length, seed=length, vocab_size=299) for length in (5, 20)]
    wish = sampling(8, num_logprobs=1)
    sequences = [driven.add(good[0], wish), driven.add([7, 299], wish), driven.add(good[1], wish)]
    samples = driven.step(*((sequence, sequence.num_tokens) for sequence in sequences))
    assert samples[1].token_id is None
    assert samples[1].logprobs is None
    for sample, prompt in zip((samples[0], samples[2]), good, strict=True):
        assert sample.token_id == checkpoint("llama").greedy(prompt, 1)[0]
        assert sample.logprobs is not None


def seeded_tokens(
    driven: HandDriven, wish_of: dict[str, Any], companions: int, chunk: int
) -> list[int]:
    """Run one seeded sequence among others; return its twelve tokens."""
    wish = sampling(12, 0.9, seed=77, **wish_of)
    others = [
        driven.add(random_prompt(11 + index, seed=index), sampling(12, 1.3))
        for index in range(companions)
    ]
    sequence = driven.add(random_prompt(26), wish)
    mixed_run(driven, [*others[::2], sequence, *others[1::2]], budget=chunk)
    return output(sequence)


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.8}, {"top_k": 20, "min_p": 0.02}])
def test_a_seed_gives_the_same_tokens_in_any_company(
    checkpoint: MakeCheckpoint, filters: dict[str, Any]
) -> None:
    driven = driven_by_hand(checkpoint, "llama")
    alone = seeded_tokens(driven, filters, companions=0, chunk=1024)
    assert len(set(alone)) > 3
    for companions, chunk in ((1, 1024), (4, 9), (3, 64)):
        driven = driven_by_hand(checkpoint, "llama")
        assert seeded_tokens(driven, filters, companions, chunk) == alone


def test_a_seed_gives_the_same_tokens_after_preemption(checkpoint: MakeCheckpoint) -> None:
    driven = driven_by_hand(checkpoint, "llama")
    wish = sampling(12, 0.9, seed=77)
    whole = driven.add(random_prompt(26), wish)
    driven.generate(whole)
    cut = driven.add(random_prompt(26), wish)
    for _ in range(5):
        driven.step((cut, cut.num_tokens - cut.num_computed))
    # restarts in other blocks, with nothing computed
    hold(cut, driven.blocks.take(26 + wish.max_tokens))
    cut.num_computed = 0
    driven.generate(cut, chunk=10)
    assert output(cut) == output(whole)


def test_another_seed_gives_other_tokens(checkpoint: MakeCheckpoint) -> None:
    driven = driven_by_hand(checkpoint, "llama")
    runs = []
    for seed in (1, 2, None, None):
        sequence = driven.add(random_prompt(26), sampling(12, 1.0, seed=seed))
        driven.generate(sequence)
        runs.append(tuple(output(sequence)))
    assert len(set(runs)) == 4


def test_min_tokens_keeps_eos_away_until_it_is_reached(checkpoint: MakeCheckpoint) -> None:
    driven = driven_by_hand(checkpoint, "llama")
    (eos,) = driven.model.eos_token_ids
    eager: dict[str, Any] = {"logit_bias": {eos: 100.0, 5: 50.0}}
    for min_tokens in (0, 3):
        sequence = driven.add(random_prompt(8), sampling(5, min_tokens=min_tokens, **eager))
        driven.generate(sequence)
        assert output(sequence) == [5] * min_tokens + [eos] * (5 - min_tokens)


def test_min_tokens_keeps_stop_tokens_away_too(checkpoint: MakeCheckpoint) -> None:
    driven = driven_by_hand(checkpoint, "llama")
    wish = sampling(
        4, min_tokens=2, stop_token_ids=(8, 10**9), ignore_eos=True, logit_bias={8: 100.0, 2: 90.0}
    )
    sequence = driven.add(random_prompt(8), wish)
    driven.generate(sequence)
    assert output(sequence) == [2, 2, 8, 8], "an ignored eos needs no keeping away"
