"""A whole server's ranking equals that of transformers, and the shared prefix is computed once."""

from __future__ import annotations

import pytest
import torch

from gateway.dialects.openai.prefill.rerank import INSTRUCTION, SYSTEM
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.prefill.conftest import BLOCK, MODEL, computed_for, distinct_tokens
from tests.seams.support.server import Server
from tests.seams.support.small_qwen import small_tokenizer

QUERY = "Which door code has Oslo? " * 8
DOCUMENTS = [f"Document {number}: " + "code " * (3 * number) for number in range(1, 9)]
TOKENIZER = small_tokenizer(appends=False)
HEAD = (
    f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: "
)
TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text).ids
    return ids


def true_score(made: Checkpoint, document: str) -> float:
    """Compute the score by the method of Qwen3-Reranker's page, on one tokenised text."""
    logits = made.logits(ids_of(HEAD + document + TAIL))[-1]
    words = [TOKENIZER.token_to_id("no"), TOKENIZER.token_to_id("yes")]
    return float(torch.log_softmax(logits[words], 0)[1].exp())


def test_scores_are_those_of_transformers_and_what_is_shared_is_computed_once(
    small_server: Server, small_qwen: Checkpoint
) -> None:
    with small_server.client(small_server.new_tenant()) as client:
        body = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS}
        answer = client.post("/v1/rerank", json=body).raise_for_status().json()
        total = computed_for(client)
    scores = {one["index"]: one["relevance_score"] for one in answer["results"]}
    for index, document in enumerate(DOCUMENTS):
        assert scores[index] == pytest.approx(true_score(small_qwen, document), abs=1e-4)
    assert [*scores.values()] == sorted(scores.values(), reverse=True)
    prompts = [ids_of(HEAD + document + TAIL) for document in DOCUMENTS]
    distinct = distinct_tokens(prompts)
    assert distinct <= total < distinct + BLOCK * len(DOCUMENTS), "less than a block of each twice"
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(map(len, prompts)) > 2 * total
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - total
