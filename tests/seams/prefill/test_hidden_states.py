"""Embeddings and logits of a prompt equal those of `transformers`, cached or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.link.event_messages import Failed
from prefix_cache.namespace import Namespace
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.hand_driven import random_prompt, sampling
from tests.seams.support.real_engine import Bounds, RealEngine

NAMESPACE = Namespace(b"n" * 16)
PLAIN = Bounds(num_blocks=96, block_size=16, max_batch_tokens=48, max_running=4)
MACHINES = {
    "plain": PLAIN,
    "overlap": replace(PLAIN, overlap_scheduling=True),
    "captured": replace(PLAIN, graph_tokens=64),
    "ranks": replace(PLAIN, ranks=2),
    "stages": replace(PLAIN, stages=2, overlap_scheduling=True),
    "pressed": replace(PLAIN, num_blocks=12, overlap_scheduling=True),
}
PROMPTS = {length: random_prompt(length, seed=length) for length in (1, 2, 17, 33, 90)}
CANDIDATES = [7, 299, 0, 7]
TOLERANCE = 1e-4
Values = npt.NDArray[np.float32]


@torch.inference_mode()
def true_embedding(checkpoint: Checkpoint, prompt: list[int]) -> Values:
    states = checkpoint.truth.model(torch.tensor([prompt]), use_cache=False).last_hidden_state
    return np.asarray(states[0, -1].float().numpy())


def embed(engine: RealEngine, name: str, prompt: list[int], namespace: Namespace) -> None:
    engine.submit(
        name, prompt, sampling(0), namespace=namespace, embeds=True, candidates=CANDIDATES
    )


def told(engine: RealEngine, name: str) -> Values:
    return np.frombuffer(engine.finished(name).embedding, "<f4")


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_read_off_a_prompt_is_its_last_tokens(checkpoint: Checkpoint, machine: str) -> None:
    """The prompts are first computed beside requests that generate, then found in the cache."""
    engine = RealEngine(str(checkpoint.model_dir), MACHINES[machine])
    wish = sampling(12, 1.0, seed=4, num_logprobs=2, ignore_eos=True)
    engine.submit("neighbour", PROMPTS[33], wish, namespace=NAMESPACE)
    for turn in ("cold", "hot"):
        for length, prompt in PROMPTS.items():
            embed(engine, f"{turn}-{length}", prompt, NAMESPACE)
        engine.run()
        for length, prompt in PROMPTS.items():
            found = told(engine, f"{turn}-{length}")
            assert np.abs(found - true_embedding(checkpoint, prompt)).max() < TOLERANCE
            logits = np.frombuffer(engine.finished(f"{turn}-{length}").candidates, "<f4")
            truth = checkpoint.logits(prompt)[-1, CANDIDATES].numpy()
            assert np.abs(logits - truth).max() < 2 * TOLERANCE
    assert engine.finished("neighbour").embedding == b"", "the control: it asked for none"
    assert len(engine.tokens("neighbour")) == 12
    if machine != "pressed":
        assert engine.finished("hot-90").reused.tokens >= 80
        assert engine.finished("hot-90").computed_tokens <= 10
    assert engine.finished("hot-90").completion_tokens == 0
    engine.expect_nothing_left()
    engine.close()


def test_two_namespaces_share_nothing(checkpoint: Checkpoint) -> None:
    engine = RealEngine(str(checkpoint.model_dir), PLAIN)
    for name, own in (("a", b"a"), ("b", b"b"), ("again", b"a")):
        embed(engine, name, PROMPTS[90], Namespace(own * 16))
        engine.run()
    assert engine.finished("b").reused.tokens == 0
    assert engine.finished("again").reused.tokens > 0, "the control"


@pytest.mark.parametrize(
    ("max_tokens", "asked"),
    [
        (1, {"embeds": True}),
        (1, {"candidates": [3]}),
        (0, {"candidates": [300]}),
        (0, {"candidates": [3] * 257}),
    ],
)
def test_what_cannot_be_read_is_refused(
    checkpoint: Checkpoint, max_tokens: int, asked: dict[str, Any]
) -> None:
    engine = RealEngine(str(checkpoint.model_dir), PLAIN)
    engine.submit("a", PROMPTS[17], sampling(max_tokens), namespace=NAMESPACE, **asked)
    engine.run()
    last = engine.link.last("a")
    assert isinstance(last, Failed)
    assert last.code == "invalid_request"
