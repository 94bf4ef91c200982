"""Reranked documents: their order, the answer's form, and each document's position at the end of
its prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from engine.link.messages import Generate
from gateway.dialects.openai.prefill.rerank import INSTRUCTION, SYSTEM
from tests.doubles.engine.fake_engine import FakeEngine, candidates_of, prompt_of
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.seams.support.small_qwen import small_tokenizer, write_tokenizer

QUERY = "What is the capital of Norway?"
DOCUMENTS = ["yes yes yes", "silence", "no", "a yes"]
SCORES = [3.0, 0.0, -1.0, 1.0]  # logit of "yes" minus logit of "no"


def by_its_words(request: Generate) -> bytes:
    """Return one logit for each candidate token: the number of times that the document has it."""
    after = prompt_of(request)[len(head(QUERY)) :]
    return np.array([after.count(one) for one in candidates_of(request)], "<f4").tobytes()


def head(query: str, instruction: str = INSTRUCTION) -> list[int]:
    text = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
        f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
    )
    ids: list[int] = small_tokenizer(appends=False).encode(text).ids
    return ids


@pytest.fixture(scope="module")
def ranking(
    tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    model_dir: Path = tmp_path_factory.mktemp("models") / "qwen"
    write_tokenizer(model_dir, appends=False)
    with serving(config_of(model_dir, tmp_path_factory.mktemp("data")), module_engine) as gateway:
        yield gateway


def rerank(
    served: Served, path: str = "/v1/rerank", key: str | None = None, **fields: Any
) -> httpx.Response:
    body = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, **fields}
    headers = {"authorization": f"Bearer {key or served.key}"}
    return httpx.post(f"{served.url}{path}", json=body, headers=headers, timeout=60)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_in_the_order_of_their_scores(
    ranking: Served, engine: FakeEngine, path: str
) -> None:
    engine.logits = by_its_words
    answer = rerank(ranking, path).json()
    assert [one["index"] for one in answer["results"]] == [0, 3, 1, 2]
    for one in answer["results"]:
        expected = 1 / (1 + math.exp(-SCORES[one["index"]]))
        assert one["relevance_score"] == pytest.approx(expected)
        assert "document" not in one
    assert answer["usage"]["prompt_tokens"] == sum(len(prompt_of(one)) for one in engine.requests)
    assert answer["meta"]["tokens"]["input_tokens"] == answer["usage"]["prompt_tokens"]


def test_each_prompt_is_the_published_one(ranking: Served, engine: FakeEngine) -> None:
    """Instruction and query come first, so all documents share that prefix."""
    rerank(ranking, instruction="Find it", documents=["one <|im_end|>", {"text": "two"}])
    tokenizer = small_tokenizer(appends=False)
    end = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    plain = [*b"one <|im_end|>"]  # a client's text never becomes a control token
    bodies = [plain, tokenizer.encode("two").ids]
    wanted = [[*head(QUERY, "Find it"), *one, *tokenizer.encode(end).ids] for one in bodies]
    assert sorted(map(prompt_of, engine.requests)) == sorted(wanted)
    yes, no = tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")
    assert all(candidates_of(one) == [yes, no] for one in engine.requests)
    assert all(one.sampling.max_tokens == 0 for one in engine.requests)


def test_the_best_and_their_texts(ranking: Served, engine: FakeEngine) -> None:
    engine.logits = by_its_words
    answer = rerank(ranking, top_n=2, return_documents=True).json()
    assert [one["document"]["text"] for one in answer["results"]] == ["yes yes yes", "a yes"]


def test_voyages_client_reads_the_best_in_data(ranking: Served, engine: FakeEngine) -> None:
    """Send the request of voyageai 0.5.0, whose client reads `data` and does not know `results`."""
    engine.logits = by_its_words
    answer = rerank(ranking, top_k=2, truncation=True).json()
    assert [one["index"] for one in answer["data"]] == [0, 3]
    assert answer["data"] == answer["results"]
    assert answer["usage"]["total_tokens"] > 0
    assert "data" not in rerank(ranking, top_n=2).json()


def test_of_a_long_document_the_beginning_is_read(ranking: Served, engine: FakeEngine) -> None:
    """Read only the beginning of a long document.

    Haystack sends Cohere's `max_tokens_per_doc` with each request.
    """
    encode = small_tokenizer(appends=False).encode
    long, short = "yes and no, then a yes \N{GRINNING FACE}", "a yes"
    beginning = encode(long).ids[:3]
    assert rerank(ranking, documents=[long, short], max_tokens_per_doc=3).status_code == 200
    asked = [prompt_of(one)[len(head(QUERY)) :] for one in engine.requests]
    end = asked[0][len(beginning) :]
    assert sorted(asked) == sorted([[*beginning, *end], [*encode(short).ids, *end]])
    rerank(ranking, documents=[long], max_tokens_per_doc=4096)
    assert prompt_of(engine.requests[-1])[len(head(QUERY)) :] == [*encode(long).ids, *end]


def test_what_comes_before_the_documents_is_found_in_the_cache(
    ranking: Served, engine: FakeEngine
) -> None:
    def cached(**more: Any) -> int:
        answer = rerank(ranking, documents=["new"], **more).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached() == 0
    assert (
        rerank(ranking, documents=["another"]).json()["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        == len(head(QUERY)) // 16 * 16
    )
    assert cached(key=ranking.other_key) == 0
    assert cached(cache_salt="a") == 0
    assert cached() > 0, "the control"
    assert engine.requests[0].use_cache


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": [3]}, "documents[0]"),
        ({"documents": ["x" * 9000]}, "documents"),
        ({"query": "x" * 40_000, "documents": ["a"] * 2048}, "documents"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    ranking: Served, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    answer = rerank(ranking, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not engine.requests


def test_a_model_without_the_two_words_ranks_nothing(served: Served, engine: FakeEngine) -> None:
    """Refuse reranking with a model whose tokenizer has only single bytes, and no token for "yes"
    or "no".
    """
    answer = rerank(served)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "model_not_supported"
    assert not engine.requests
