"""A prompt's log-probabilities are echoed as in OpenAI's completions, or told in vLLM's form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["abé", [*"abé".encode()]])
def test_an_echoed_prompt_has_its_log_probabilities(
    client: openai.OpenAI, engine: FakeEngine, prompt: Any, stream: bool
) -> None:
    engine.script = saying("c")
    told = client.completions.create(
        model=MODEL, prompt=prompt, echo=True, logprobs=1, stream=stream, max_tokens=1
    )
    pieces = list(told) if isinstance(told, openai.Stream) else [told]
    assert "".join(one.choices[0].text for one in pieces) == "abéc"
    logprobs = [one.choices[0].logprobs for one in pieces if one.choices[0].logprobs]
    first = logprobs[0]
    bos = isinstance(prompt, str)  # a text prompt begins with BOS, which `echo` does not show
    tokens = [token for piece in logprobs for token in piece.tokens or []]
    assert tokens[bos:] == ["a", "b", "bytes:\\xc3", "bytes:\\xa9", "c"]
    values = [value for piece in logprobs for value in piece.token_logprobs or []]
    assert values == [None, *[-1.5] * (3 + bos), -0.5]
    offsets = [offset for piece in logprobs for offset in piece.text_offset or []]
    assert offsets[bos:] == [0, 1, 2, 2, 3]
    assert first.top_logprobs is not None
    assert first.top_logprobs[:1] == [None]
    assert first.top_logprobs[bos + 1] == {"a": -0.5, "b": -1.5}
    assert engine.requests[0].use_cache is False


def test_an_echoed_prompt_keeps_its_last_token_where_the_next_one_stops(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    """Keep the prompt's last token beside a stopped answer.

    lm-eval takes all log-probabilities except the last as the prompt's.
    """
    engine.script = saying("")
    asked: dict[str, Any] = {"model": MODEL, "prompt": [*b"ab"], "logprobs": 1, "max_tokens": 1}
    echoed = client.completions.create(**asked, echo=True).choices[0]
    assert echoed.logprobs is not None
    assert echoed.text == "ab"
    assert echoed.logprobs.token_logprobs == [None, -1.5, -0.5]
    plain = client.completions.create(**asked).choices[0]
    assert plain.logprobs is None or plain.logprobs.tokens == []


def test_only_what_asks_for_them_does_without_the_cache(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    for asked in ({}, {"echo": True}, {"logprobs": 1}):
        client.completions.create(model=MODEL, prompt="a", max_tokens=1, **asked)
    assert [request.use_cache for request in engine.requests] == [True] * 3
    assert [request.sampling.prompt_logprobs for request in engine.requests] == [None] * 3


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_candidates_are_told_by_token_id_as_vllm_does(
    http: httpx.Client, engine: FakeEngine, path: str
) -> None:
    asked = CHAT if path.startswith("chat") else {"model": MODEL, "prompt": "ab"}
    answer = http.post(f"/v1/{path}", json={**asked, "prompt_logprobs": 1, "max_tokens": 2}).json()
    holder = answer if path.startswith("chat") else answer["choices"][0]
    first, *others = holder["prompt_logprobs"]
    prompt = prompt_of(engine.requests[0])
    assert first is None
    assert len(others) == len(prompt) - 1
    for token, candidates in zip(prompt[1:], others, strict=True):
        assert list(candidates) == [str(token), str(token - 1)]
        assert candidates[str(token)]["logprob"] == -1.5
        assert candidates[str(token)]["rank"] == 2
        assert candidates[str(token - 1)]["rank"] == 1
        assert isinstance(candidates[str(token)]["decoded_token"], str)
    plain = http.post(f"/v1/{path}", json={**asked, "max_tokens": 2}).json()
    assert "prompt_logprobs" not in {**plain, **plain["choices"][0]}


@pytest.mark.parametrize(
    "fields", [{"prompt_logprobs": 21}, {"prompt_logprobs": 1, "stream": True}]
)
def test_more_than_are_told_and_streams_are_refused(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    refused = http.post("/v1/chat/completions", json=CHAT | fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt_logprobs"
    assert http.post("/v1/chat/completions", json=CHAT | {"prompt_logprobs": 20}).is_success


@pytest.mark.parametrize(("n", "status"), [(1, 200), (2, 400)])
def test_more_than_is_written_in_a_moment_is_refused(
    http: httpx.Client, engine: FakeEngine, n: int, status: int
) -> None:
    body = {"model": MODEL, "prompt": "x" * 3000, "prompt_logprobs": 20, "n": n, "max_tokens": 1}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["code"] == "too_many_logprobs"
        assert engine.requests == []
