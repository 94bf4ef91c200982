"""Fields of chats that `docs/reference/http-api.md` lists as ignored, and missing routes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served

PAGE = (Path(__file__).parents[4] / "docs/reference/http-api.md").read_text()
IGNORED = PAGE.partition("## What chats and completions ignore")[2].partition("## ")[0]
MISSING = PAGE.partition("## Routes that are not there")[2].partition("## ")[0]
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 3,
    "seed": 1,
}
VALUES: dict[str, Any] = {
    "user": "someone",
    "safety_identifier": "someone",
    "metadata": {"run": "7"},
    "store": True,
    "verbosity": "low",
    "parallel_tool_calls": False,
    "prompt_cache_key": "key",
    "priority": 3,
    "request_id": "mine",
    "length_penalty": 1.5,
    "add_special_tokens": False,
    "spaces_between_special_tokens": False,
    "mm_processor_kwargs": {},
    "detokenize": False,
    "n_predict": 5,
    "include_reasoning": False,
    "unheard_of": {"a": [1]},
}


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client


@pytest.mark.parametrize("name", VALUES)
def test_a_field_that_is_ignored_changes_nothing(
    http: httpx.Client, engine: FakeEngine, name: str
) -> None:
    assert f"`{name}`" in IGNORED or name == "unheard_of"
    engine.script = saying("fine")
    plain, asked = (
        http.post("/v1/chat/completions", json=CHAT | more) for more in ({}, {name: VALUES[name]})
    )
    assert (plain.status_code, asked.status_code) == (200, 200)
    assert asked.json()["choices"] == plain.json()["choices"]
    assert asked.json().keys() == plain.json().keys()
    first, second = engine.requests
    assert second.sampling == first.sampling
    assert prompt_of(second) == prompt_of(first)
    assert second.priority == first.priority


def test_a_field_that_is_not_ignored_changes_the_request(
    http: httpx.Client, engine: FakeEngine
) -> None:
    for more in ({}, {"seed": 2}):
        assert http.post("/v1/chat/completions", json=CHAT | more).status_code == 200
    first, second = engine.requests
    assert second.sampling == replace(first.sampling, seed=2) != first.sampling


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "stream options without a stream": (
        {"stream_options": {"include_usage": True}},
        "stream_options",
    ),
    "echo": ({"echo": True}, "echo"),
    "best_of": ({"best_of": 2}, "best_of"),
    "search": ({"web_search_options": {}}, "web_search_options"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "role function": ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_ignored_is_refused(http: httpx.Client, engine: FakeEngine, case: str) -> None:
    fields, param = REFUSED[case]
    refused = http.post("/v1/chat/completions", json=CHAT | fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize("fields", [{"echo": False}, {"best_of": 1}, {"n": 2, "best_of": 2}])
def test_what_asks_for_nothing_more_is_served(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert http.post("/v1/chat/completions", json=CHAT | fields).status_code == 200


def test_stream_options_without_a_stream_are_refused_for_texts_too(http: httpx.Client) -> None:
    text = {"model": MODEL, "prompt": "Hi", "stream_options": {}}
    assert http.post("/v1/completions", json=text).status_code == 400
    assert http.post("/v1/completions", json=text | {"stream": True}).status_code == 200


@pytest.mark.parametrize(("asked", "told"), [("flex", "flex"), ("auto", "default")])
def test_the_answer_says_how_it_was_served(client: openai.OpenAI, asked: Any, told: str) -> None:
    answer = client.chat.completions.create(**CHAT, service_tier=asked)
    assert answer.service_tier == told
    assert client.chat.completions.create(**CHAT).service_tier is None
    chunks = list(client.chat.completions.create(**CHAT, service_tier=asked, stream=True))
    assert {chunk.service_tier for chunk in chunks} == {told}


ROWS = [row.split(" | ")[0] for row in MISSING.splitlines() if row.startswith("| `")]
ROUTES = [path for row in ROWS for path in re.findall(r"`(/[\w/]+)`", row)]


@pytest.mark.parametrize("path", ROUTES)
def test_a_route_that_is_not_there_says_so(http: httpx.Client, path: str) -> None:
    got, posted = http.get(path), http.post(path, json={})
    assert got.status_code == posted.status_code == 404
    assert posted.json()["error"]["code"] == "unknown_url"
    # the last segment of this path is read as a response's id
    is_a_name = path.startswith("/v1/responses/")
    expected = "response_not_found" if is_a_name else "unknown_url"
    assert got.json()["error"]["code"] == expected


def test_chats_are_not_listed(http: httpx.Client) -> None:
    answer = http.get("/v1/chat/completions")
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert "POST" in answer.headers["allow"]
