"""Each content gets its embedding, in batches and by the older method for one content.

Google's client sends batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from google import genai
from google.genai import errors, types

from tests.doubles.engine.fake_engine import FakeEngine, embedding_of, prompt_of
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.gemini.asking import PATH, error_of, param_of


def embedded(client: genai.Client, contents: Any, **config: Any) -> list[list[float]]:
    asked = types.EmbedContentConfig(**config)
    answer = client.models.embed_content(model=MODEL, contents=contents, config=asked)
    return [one.values or [] for one in answer.embeddings or []]


def of_prompt(prompt: list[int], most: int | None = None) -> list[float]:
    """Return the first numbers of a prompt's embedding, normalised to length 1."""
    values = np.frombuffer(embedding_of(prompt), "<f4")[:most].astype(float)
    return [float(one) for one in values / np.linalg.norm(values)]


@pytest.mark.parametrize("most", [None, 3])
def test_each_content_has_its_embedding(
    gemini: genai.Client, engine: FakeEngine, most: int | None
) -> None:
    found = embedded(
        gemini, ["one", "two"], output_dimensionality=most, task_type="RETRIEVAL_QUERY"
    )
    prompts = [prompt_of(request) for request in engine.requests]
    assert len(prompts) == 2
    assert found == [pytest.approx(of_prompt(prompt, most)) for prompt in sorted(prompts)]


def body(text: str = "one", **fields: Any) -> dict[str, Any]:
    return {"content": {"parts": [{"text": text}]}, **fields}


def test_one_content_has_the_embedding_of_chats_dialect(
    http: httpx.Client, engine: FakeEngine
) -> None:
    one = http.post(f"{PATH}:embedContent", json=body()).json()["embedding"]["values"]
    snake = http.post(f"{PATH}:embedContent", json=body(output_dimensionality=2)).json()
    same = http.post("/v1/embeddings", json={"model": MODEL, "input": "one"}).json()
    assert one == same["data"][0]["embedding"]
    assert len(snake["embedding"]["values"]) == 2
    assert prompt_of(engine.requests[0]) == prompt_of(engine.requests[2])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no text": (body(""), "requests[1].content"),
    "an image": (
        {"content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": "AA"}}]}},
        "requests[1].content.parts[0].inlineData",
    ),
    "a call": (
        {"content": {"parts": [{"functionCall": {"name": "clock"}}]}},
        "requests[1].content.parts[0]",
    ),
    "too many numbers": (body(outputDimensionality=9), "requests[1].outputDimensionality"),
    "another salt": (body(cacheSalt="s"), "requests[1].cacheSalt"),
    "nothing": ({}, "requests[1].content"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_the_field(http: httpx.Client, engine: FakeEngine, case: str) -> None:
    wrong, param = WRONG[case]
    for version in ("v1beta", "v1"):
        path = f"/{version}/models/{MODEL}:batchEmbedContents"
        refused = http.post(path, json={"requests": [body(), wrong]})
        assert param_of(error_of(refused, 400, "INVALID_ARGUMENT")) == param
    assert not engine.requests


def test_another_model_is_not_found(gemini: genai.Client, engine: FakeEngine) -> None:
    with pytest.raises(errors.ClientError) as refused:
        gemini.models.embed_content(model="other", contents="one")
    assert refused.value.code == 404
    assert not engine.requests


CHAT = {"contents": [{"parts": [{"text": "hi"}]}]}
NAMED: dict[str, tuple[str, Callable[[str], dict[str, Any]], str]] = {
    "a batch's item": (
        "batchEmbedContents",
        lambda name: {"requests": [body(), body(model=name)]},
        "requests[1].model",
    ),
    "one content": ("embedContent", lambda name: body(model=name), "model"),
    "a chat": ("generateContent", lambda name: {**CHAT, "model": name}, "model"),
    "a counted chat": (
        "countTokens",
        lambda name: {"generateContentRequest": {**CHAT, "model": name}},
        "generateContentRequest.model",
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_a_body_names_the_model_of_its_path(
    http: httpx.Client, engine: FakeEngine, case: str
) -> None:
    method, body_of, param = NAMED[case]
    for name in (MODEL, f"models/{MODEL}"):
        assert http.post(f"{PATH}:{method}", json=body_of(name)).status_code == 200
    engine.requests.clear()
    refused = http.post(f"{PATH}:{method}", json=body_of("models/other"))
    assert param_of(error_of(refused, 400, "INVALID_ARGUMENT")) == param
    assert not engine.requests
