"""Streams have the form that Google's client and a plain reader of bytes expect, also in errors."""

from __future__ import annotations

import httpx
import pytest
from google import genai
from google.genai import errors

from engine.errors import EngineDied
from tests.doubles.engine.fake_engine import FakeEngine, failing_at, saying
from tests.gateway.dialects.gemini.asking import (
    PATH,
    error_of,
    events_of,
    parts_of,
    post,
    reason_of,
    streamed,
    usage_of,
)

STREAM = "streamGenerateContent"


def test_a_stream(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("Hello")
    *chunks, last = streamed(gemini)
    assert "".join(chunk.text or "" for chunk in chunks) == "Hello"
    assert len(chunks) == 5  # each token of the tiny model is a byte
    assert all(reason_of(chunk) is None for chunk in chunks)
    assert reason_of(last) == "STOP"
    assert usage_of(last).candidates_token_count == 6
    assert len({chunk.response_id for chunk in (*chunks, last)}) == 1


def test_candidates_come_in_turn(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("ab")
    *chunks, last = streamed(gemini, candidate_count=2)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        assert chunk.candidates is not None
        texts[chunk.candidates[0].index or 0] += parts_of(chunk)[0].text or ""
    assert texts == {0: "ab", 1: "ab"}
    assert [one.index for one in last.candidates or ()] == [0, 1]


def test_the_bytes_of_a_stream(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("a")
    answer = post(http, f"{STREAM}?alt=sse", drafts=False)
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, last = events_of(answer)
    content = {"parts": [{"text": "a"}], "role": "model"}
    assert first["candidates"] == [{"content": content, "index": 0}]
    prompt = first["usageMetadata"]["promptTokenCount"]
    assert first["usageMetadata"]["totalTokenCount"] == prompt
    assert "candidatesTokenCount" not in first["usageMetadata"]
    assert last["usageMetadata"]["totalTokenCount"] == prompt + 2
    assert last["candidates"][0]["finishReason"] == "STOP"
    assert last["usageMetadata"]["candidatesTokenCount"] == 2


def test_a_stream_that_is_no_stream_of_events(http: httpx.Client) -> None:
    error = error_of(post(http, STREAM), 400, "INVALID_ARGUMENT")
    assert "`alt`" in error["message"]


def test_a_failure_within_a_stream(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script, engine.pace = saying("abcdef"), failing_at(3, EngineDied("it died"))
    with pytest.raises(errors.APIError) as raised:
        streamed(gemini)
    assert (raised.value.code, raised.value.status) == (503, "UNAVAILABLE")


def test_a_path_that_nobody_has(http: httpx.Client) -> None:
    error_of(http.post("/v1beta/dreams", json={}), 404, "NOT_FOUND")
    error_of(http.post(f"{PATH}:dreamContent", json={}), 405, "UNIMPLEMENTED")
