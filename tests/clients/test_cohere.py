"""Cohere's client, whose two versions use different paths, reranks documents and raises errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.seams.support.small_qwen import write_tokenizer

cohere: Any = pytest.importorskip("cohere")

QUERY = "What is the capital of Norway?"
DOCUMENTS = ["silence", "yes yes", "yes"]


@pytest.fixture(scope="module")
def ranking(
    tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    model_dir = tmp_path_factory.mktemp("models") / "qwen"
    write_tokenizer(model_dir, appends=False)
    with serving(config_of(model_dir, tmp_path_factory.mktemp("data")), module_engine) as gateway:
        yield gateway


@pytest.mark.parametrize("version", ["Client", "ClientV2"])
def test_documents_are_ranked(ranking: Served, engine: FakeEngine, version: str) -> None:
    with httpx.Client() as http:
        client = getattr(cohere, version)(ranking.key, base_url=ranking.url, httpx_client=http)
        answer = client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [one.index for one in answer.results] == [1, 2]
    assert 1 > answer.results[0].relevance_score > answer.results[1].relevance_score > 0
    assert answer.meta.tokens.input_tokens == sum(len(prompt_of(one)) for one in engine.requests)


def test_an_error_has_its_status(ranking: Served, engine: FakeEngine) -> None:
    with httpx.Client() as http:
        client = cohere.ClientV2(ranking.key, base_url=ranking.url, httpx_client=http)
        with pytest.raises(cohere.NotFoundError):
            client.rerank(model="other", query=QUERY, documents=DOCUMENTS)
    assert not engine.requests
