"""A whole server's decisions equal those of transformers, and a shared prefix is computed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gateway.dialects.openai.prefill.questions import PICK, SYSTEM, TRUE
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.prefill.conftest import BLOCK, MODEL, computed_for, distinct_tokens
from tests.seams.support.server import Server
from tests.seams.support.small_qwen import small_tokenizer

INPUT = "Oslo's door has the code 1417. " * 12
STATEMENTS = [f"The code of door {number} is odd." for number in range(60)]
CHOICES = ["red", "green", "blue"]
TOKENIZER = small_tokenizer(appends=False)


def ids_of(question: str) -> list[int]:
    text = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n<Input>\n{INPUT}\n</Input>\n\n"
        f"{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    ids: list[int] = TOKENIZER.encode(text).ids
    return ids


def truth(made: Checkpoint, prompt: list[int], answers: list[str]) -> list[float]:
    words = [TOKENIZER.token_to_id(answer) for answer in answers]
    shares: list[float] = torch.softmax(made.logits(prompt)[-1][words], 0).tolist()
    return shares


def test_answers_are_those_of_transformers_and_the_input_is_computed_once(
    small_server: Server, small_qwen: Checkpoint
) -> None:
    key = small_server.new_tenant()
    asked: list[Any] = [{"type": "predicate", "instructions": text} for text in STATEMENTS]
    choices = [{"value": one} for one in CHOICES]
    asked.append({"type": "choice", "instructions": "Which?", "choices": choices})
    with small_server.openai(key) as client, small_server.client(key) as http:
        decision = client.decisions.create(model=MODEL, input=INPUT, questions=asked)
        total = computed_for(http)
    lines = "".join(f"\n{label}. {one}" for label, one in zip("ABC", CHOICES, strict=True))
    prompts = [ids_of(f"{text}\n{TRUE}") for text in STATEMENTS]
    prompts.append(ids_of(f"Which?\n{PICK}{lines}"))
    for prompt, answer in zip(prompts[:3], decision.answers[:3], strict=True):
        assert answer.type == "predicate"
        expected = truth(small_qwen, prompt, ["yes", "no"])[0]
        assert answer.probability == pytest.approx(expected, abs=1e-4)
    last = decision.answers[-1]
    assert last.type == "choice"
    told = [one.probability for one in last.probabilities]
    assert told == pytest.approx(truth(small_qwen, prompts[-1], [*"ABC"]), abs=1e-4)
    distinct = distinct_tokens(prompts)
    assert distinct <= total < distinct + BLOCK * len(prompts), "less than a block of each twice"
    usage = decision.usage
    assert usage.input_tokens == sum(map(len, prompts)) > 5 * total
    assert usage.input_tokens_details.cached_tokens == usage.input_tokens - total
