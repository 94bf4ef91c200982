"""A prompt's log-probabilities equal those of `transformers`, whatever else runs or is cached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.link.event_messages import Failed, Finished, TokenLogprobs, Tokens
from engine.scheduling.step_builder import MOST_SCORED
from prefix_cache.namespace import Namespace
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.hand_driven import random_prompt, sampling
from tests.seams.support.real_engine import Bounds, RealEngine

NAMESPACE = Namespace(b"n" * 16)
PLAIN = Bounds(num_blocks=96, block_size=16, max_batch_tokens=48, max_running=4)
MACHINES = {
    "plain": PLAIN,
    "overlap": replace(PLAIN, overlap_scheduling=True),
    "captured": replace(PLAIN, graph_tokens=32),
    "ranks": replace(PLAIN, ranks=2),
    "stages": replace(PLAIN, stages=2, overlap_scheduling=True),
    "pressed": replace(PLAIN, num_blocks=12, overlap_scheduling=True),
}
PROMPTS = {length: random_prompt(length, seed=length) for length in (1, 2, 17, 33, 90)}
NEIGHBOUR = sampling(12, 1.0, seed=4, presence_penalty=0.5, num_logprobs=2, ignore_eos=True)


def told(engine: RealEngine, request_id: str) -> tuple[TokenLogprobs, ...]:
    """Return the log-probabilities of the prompt, and check that they were sent exactly once."""
    events = [event for event in engine.link.events(request_id) if not isinstance(event, Failed)]
    [scores] = [event.prompt_logprobs for event in events if event.prompt_logprobs is not None]
    return scores


def expect_right(checkpoint: Checkpoint, prompt: list[int], scores: Any, likeliest: int) -> None:
    truth = checkpoint.logits(prompt).log_softmax(-1)[:-1]
    assert len(scores) == len(prompt) - 1
    for logprobs, token, score in zip(truth, prompt[1:], scores, strict=True):
        assert score.chosen == pytest.approx(float(logprobs[token]), abs=2e-4)
        assert abs(score.rank - 1 - int((logprobs > logprobs[token]).sum())) <= 1, "near ties"
        best = torch.topk(logprobs, likeliest).values.tolist()
        assert [value for _, value in score.top] == pytest.approx(best, abs=2e-4)
        for other, value in score.top:
            assert value == pytest.approx(float(logprobs[other]), abs=2e-4)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_token_of_a_prompt_has_its_log_probability(
    checkpoint: Checkpoint, machine: str
) -> None:
    """The prompts may be cached, and run beside requests with penalties."""
    engine = RealEngine(str(checkpoint.model_dir), MACHINES[machine])
    for length, prompt in PROMPTS.items():
        engine.submit(f"warm-{length}", prompt, sampling(2, ignore_eos=True), namespace=NAMESPACE)
    engine.run()
    engine.submit("neighbour", PROMPTS[33], NEIGHBOUR, namespace=NAMESPACE)
    for likeliest, (length, prompt) in enumerate(PROMPTS.items()):
        wish = sampling(3, prompt_logprobs=likeliest, ignore_eos=True)
        engine.submit(f"{length}", prompt, wish, namespace=NAMESPACE, use_cache=False)
    engine.run()
    for likeliest, (length, prompt) in enumerate(PROMPTS.items()):
        expect_right(checkpoint, prompt, told(engine, f"{length}"), likeliest)
        assert engine.finished(f"{length}").reused.tokens == 0
        assert engine.tokens(f"{length}") == checkpoint.greedy(prompt, 3)
    beside = engine.tokens("neighbour")
    engine.submit("alone", PROMPTS[33], NEIGHBOUR, namespace=NAMESPACE)
    engine.run()
    assert engine.tokens("alone") == beside
    assert engine.finished("alone").reused.tokens > 0, "the control: others still hit the cache"
    engine.expect_nothing_left()
    engine.close()


def test_what_it_generates_has_the_penalties_that_it_asks_for(checkpoint: Checkpoint) -> None:
    engine = RealEngine(str(checkpoint.model_dir), PLAIN)
    wish = {"presence_penalty": 1.5, "repetition_penalty": 1.4, "num_logprobs": 1}
    for name, more in (("plain", {}), ("scored", {"prompt_logprobs": 1})):
        asked = sampling(16, **wish, **more, ignore_eos=True)
        engine.submit(name, PROMPTS[90], asked, namespace=NAMESPACE, use_cache=False)
        engine.run()
    assert engine.tokens("plain") == engine.tokens("scored")
    assert engine.tokens("plain") != checkpoint.greedy(PROMPTS[90], 16)


def test_a_prompt_after_which_it_stops_at_once_is_told_with_the_end(
    checkpoint: Checkpoint,
) -> None:
    engine = RealEngine(str(checkpoint.model_dir), PLAIN)
    [first] = checkpoint.greedy(PROMPTS[17], 1)
    wish = sampling(3, prompt_logprobs=0, stop_token_ids=[first])
    engine.submit("a", PROMPTS[17], wish, namespace=NAMESPACE, use_cache=False)
    engine.run()
    assert not any(isinstance(event, Tokens) for event in engine.link.events("a"))
    assert isinstance(engine.link.last("a"), Finished)
    expect_right(checkpoint, PROMPTS[17], told(engine, "a"), 0)


def test_a_step_scores_no_more_tokens_than_there_is_memory_for(checkpoint: Checkpoint) -> None:
    engine = RealEngine(
        str(checkpoint.model_dir), replace(PLAIN, max_batch_tokens=2000, num_blocks=200)
    )
    prompts = {name: random_prompt(150, seed=ord(name)) for name in "abcd"}
    for name, prompt in prompts.items():
        wish = sampling(1, prompt_logprobs=0, ignore_eos=True)
        engine.submit(name, prompt, wish, namespace=NAMESPACE, use_cache=False)
    engine.run()
    fewest = -(-4 * 149 // MOST_SCORED)
    assert len([step for step in engine.steps if step]) >= fewest
    for name, prompt in prompts.items():
        expect_right(checkpoint, prompt, told(engine, name), 0)


@pytest.mark.parametrize(
    ("likeliest", "use_cache", "is_sound"),
    [(2, False, True), (2, True, False), (-1, False, False), (129, False, False)],
)
def test_what_cannot_be_scored_is_refused(
    checkpoint: Checkpoint, likeliest: int, use_cache: bool, is_sound: bool
) -> None:
    engine = RealEngine(str(checkpoint.model_dir), PLAIN)
    wish = sampling(1, prompt_logprobs=likeliest)
    engine.submit("a", PROMPTS[33], wish, namespace=NAMESPACE, use_cache=use_cache)
    engine.run()
    last = engine.link.last("a")
    code = last.code if isinstance(last, Failed) else None
    assert code == (None if is_sound else "invalid_request")
