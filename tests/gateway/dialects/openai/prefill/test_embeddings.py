"""Every input gets its embedding, and only its own tenant's cache is used.

The official client asks.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest

from gateway.prompts.generation_request import PROMPTS_AT_ONCE
from tests.doubles.engine.fake_engine import FakeEngine, embedding_of, hanging_at, prompt_of
from tests.doubles.engine.tiny_model import BOS
from tests.doubles.gateway.served import MODEL, Served

TEXT = "a text of several blocks, so that the cache has something to find of it"


def expected(prompt: list[int], dimensions: int | None = None) -> npt.NDArray[np.float64]:
    values = np.frombuffer(embedding_of(prompt), "<f4")[:dimensions].astype(np.float64)
    return np.asarray(values / np.linalg.norm(values))


def test_every_input_has_its_embedding_in_order(client: openai.OpenAI) -> None:
    texts = [f"text {number}" for number in range(2 * PROMPTS_AT_ONCE + 1)]
    answer = client.embeddings.create(model=MODEL, input=texts)
    assert [one.index for one in answer.data] == [*range(len(texts))]
    for text, one in zip(texts, answer.data, strict=True):
        assert np.allclose(one.embedding, expected([BOS, *text.encode()]), atol=1e-6)
    assert answer.object == "list"
    assert answer.model == MODEL
    assert answer.usage.prompt_tokens == sum(len(text) + 1 for text in texts)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("abc", [[BOS, *b"abc"]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_an_input_is_a_text_or_token_ids(
    client: openai.OpenAI, engine: FakeEngine, given: Any, prompts: list[list[int]]
) -> None:
    client.embeddings.create(model=MODEL, input=given)
    assert sorted(prompt_of(one) for one in engine.requests) == sorted(prompts)
    assert all(one.embeds and one.sampling.max_tokens == 0 for one in engine.requests)


def test_numbers_and_base64_say_the_same(client: openai.OpenAI) -> None:
    """Compare numbers with base64, for which the client asks by default."""
    plain = client.embeddings.create(model=MODEL, input=TEXT, encoding_format="float")
    packed = client.embeddings.create(model=MODEL, input=TEXT)
    assert np.allclose(plain.data[0].embedding, packed.data[0].embedding, atol=1e-7)
    assert np.linalg.norm(plain.data[0].embedding) == pytest.approx(1.0, abs=1e-6)


def test_a_shorter_embedding_is_cut_and_scaled_again(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=TEXT, dimensions=3)
    assert np.allclose(answer.data[0].embedding, expected([BOS, *TEXT.encode()], 3), atol=1e-6)


def cached(client: openai.OpenAI, **more: Any) -> int:
    usage = client.embeddings.create(model=MODEL, input=TEXT, **more).usage
    return int(usage.model_dump()["prompt_tokens_details"]["cached_tokens"])


def test_tenants_and_salts_share_nothing(client: openai.OpenAI, served: Served) -> None:
    assert cached(client) == 0
    assert cached(client) > 0, "the control"
    assert cached(client.with_options(api_key=served.other_key)) == 0
    assert cached(client, extra_body={"cache_salt": "a"}) == 0


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"dimensions": 9}, "dimensions"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [260]}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"extra_body": {"truncate_prompt_tokens": 3}}, "truncate_prompt_tokens"),
        ({"extra_body": {"cache_salt": "x" * 2000}}, "cache_salt"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    client: openai.OpenAI, engine: FakeEngine, more: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(**{"model": MODEL, "input": "a", **more})
    assert refused.value.param == param
    assert not engine.requests


def test_another_model_and_no_key(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="a")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="none").embeddings.create(model=MODEL, input="a")


def test_a_client_that_leaves_ends_its_prompts(served: Served, engine: FakeEngine) -> None:
    engine.pace = hanging_at(0)
    body = json.dumps({"model": MODEL, "input": ["a"] * (PROMPTS_AT_ONCE + 3)})
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.key}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as leaving:
        leaving.sendall((head + body).encode())
        assert engine.wait_until(lambda engine: engine.running == PROMPTS_AT_ONCE)
    assert engine.wait_until(lambda engine: engine.cancelled == PROMPTS_AT_ONCE)
    assert len(engine.requests) == PROMPTS_AT_ONCE
