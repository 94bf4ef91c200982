"""A small body that would make very large prompts is refused before they are written."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gateway.config import Bounds
from gateway.dialects.openai.prefill.decisions import request_of_decisions
from gateway.dialects.openai.prefill.rerank import request_of_rerank
from gateway.dialects.openai.prefill.schema import DecisionRequest, RerankRequest
from gateway.errors import BadRequest
from gateway.prompts.generation_request import GenerationRequest
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.seams.support.small_qwen import write_tokenizer

SHARED = "x" * 1_000_000

Asking = Callable[[Tokenizer, int], GenerationRequest]


def rerank(tokenizer: Tokenizer, copies: int) -> GenerationRequest:
    body = {"query": SHARED, "documents": ["a"] * copies}
    return request_of_rerank(msgspec.convert(body, RerankRequest), "r", Bounds(), tokenizer)


def decide(tokenizer: Tokenizer, copies: int) -> GenerationRequest:
    question = {"type": "predicate", "instructions": "It is long."}
    body = {"model": "m", "input": SHARED, "questions": [question] * copies}
    return request_of_decisions(msgspec.convert(body, DecisionRequest), "r", tokenizer)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    model_dir: Path = tmp_path_factory.mktemp("models") / "qwen"
    write_tokenizer(model_dir, appends=False)
    return Tokenizer.load(model_dir)


@pytest.mark.parametrize(("ask", "param"), [(rerank, "documents"), (decide, "input")])
def test_what_all_prompts_share_is_not_written_into_too_many(
    tokenizer: Tokenizer, ask: Asking, param: str
) -> None:
    control = ask(tokenizer, 20)
    assert sum(len(SHARED) for _ in control.prompts) == 20_000_000
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match="characters together") as caught:
            ask(tokenizer, 300)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.param == param
    assert peak < 10 * len(SHARED), "300 copies would take 300 times as much"
