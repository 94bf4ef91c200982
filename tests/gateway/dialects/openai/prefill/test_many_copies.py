"""A small body that would make very large prompts is refused before they are built."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gateway.config import Bounds
from gateway.dialects.openai.prefill.decisions import request_of_decisions
from gateway.dialects.openai.prefill.embeddings import request_of_embeddings
from gateway.dialects.openai.prefill.rerank import request_of_rerank
from gateway.dialects.openai.prefill.schema import (
    DecisionRequest,
    EmbeddingRequest,
    RerankRequest,
)
from gateway.dialects.prefill_request import PrefillRequest
from gateway.errors import BadRequest
from gateway.processes.fair_executor import at_once
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.seams.support.small_qwen import write_tokenizer

SHARED = "x" * 1_000_000

Asking = Callable[[Tokenizer, int, str], PrefillRequest]


def rerank(tokenizer: Tokenizer, copies: int, shared: str = SHARED) -> PrefillRequest:
    body = {"query": shared, "documents": ["a"] * copies, "return_documents": False}
    wire = msgspec.convert(body, RerankRequest)
    return at_once(request_of_rerank(wire, "r", Bounds(), tokenizer, 1 << 20))


def decide(tokenizer: Tokenizer, copies: int, shared: str = SHARED) -> PrefillRequest:
    question = {"type": "predicate", "instructions": "It is long."}
    body = {"model": "m", "input": shared, "questions": [question] * copies}
    return request_of_decisions(msgspec.convert(body, DecisionRequest), "r", tokenizer)


def embed(tokenizer: Tokenizer, copies: int, shared: str = SHARED) -> PrefillRequest:
    del tokenizer
    wire = msgspec.json.decode(
        msgspec.json.encode({"model": "m", "input": [shared] * copies}), type=EmbeddingRequest
    )
    return request_of_embeddings(wire, "r", Bounds(), 1 << 20, 8)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    model_dir: Path = tmp_path_factory.mktemp("models") / "qwen"
    write_tokenizer(model_dir, appends=False)
    return Tokenizer.load(model_dir)


@pytest.mark.parametrize(("ask", "param"), [(rerank, "documents"), (decide, "input")])
def test_what_all_prompts_share_is_not_written_into_too_many(
    tokenizer: Tokenizer, ask: Asking, param: str
) -> None:
    control = ask(tokenizer, 20, SHARED)
    assert 20_000_000 <= control.num_bytes < 20_100_000
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match="bytes of memory together") as caught:
            ask(tokenizer, 300, SHARED)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.param == param
    assert peak < 10 * len(SHARED), "300 copies would take 300 times as much"


@pytest.mark.parametrize("ask", [rerank, decide, embed])
@pytest.mark.parametrize(("character", "width"), [("x", 1), ("字", 2), ("🙂", 4)])
def test_prompts_are_counted_by_the_bytes_that_they_take(
    tokenizer: Tokenizer, ask: Asking, character: str, width: int
) -> None:
    # one character outside Latin-1 makes Python store the whole text in wider characters
    shared = "x" * 99_999 + character
    tracemalloc.start()
    try:
        made = ask(tokenizer, 20, shared)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made.asked.prompts) == 20
    assert made.num_bytes == pytest.approx(20 * width * 100_000, rel=0.02)
    assert held < 1.1 * made.num_bytes
