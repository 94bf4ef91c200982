"""Fields of chats under the names that clients of other servers use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served

QUESTION = {"role": "user", "content": "A color?"}
BEGUN = {"role": "assistant", "content": "Bl"}


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=20) as client:
        yield client


def asked(http: httpx.Client, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": messages, "max_tokens": 3, **fields}
    return http.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_a_message_that_is_to_be_continued(
    http: httpx.Client, engine: FakeEngine, name: str
) -> None:
    engine.script = saying("ue")
    answer = asked(http, QUESTION, BEGUN | {name: True})
    assert answer.json()["choices"][0]["message"]["content"] == "ue"
    asked(http, QUESTION, BEGUN, continue_final_message=True, add_generation_prompt=False)
    asked(http, QUESTION, BEGUN | {name: False})
    marked, named, unmarked = map(prompt_of, engine.requests)
    assert marked == named != unmarked


def test_in_a_history_the_mark_says_nothing(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("fine")
    for message in (BEGUN, BEGUN | {"prefix": True}):
        assert asked(http, QUESTION, message, QUESTION).status_code == 200
    first, second = map(prompt_of, engine.requests)
    assert first == second


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ([QUESTION | {"prefix": True}], {}, "messages[0].prefix"),
        (
            [QUESTION, BEGUN | {"partial": True}],
            {"add_generation_prompt": True},
            "messages[1].partial",
        ),
    ],
)
def test_a_mark_that_cannot_be_followed(
    http: httpx.Client, engine: FakeEngine, messages: Any, fields: dict[str, Any], param: str
) -> None:
    refused = asked(http, *messages, **fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert not engine.requests


def test_a_seed(http: httpx.Client, engine: FakeEngine) -> None:
    for fields in ({"seed": 5}, {"random_seed": 5}, {"seed": 5, "random_seed": 6}, {}):
        assert asked(http, QUESTION, **fields).status_code == 200
    named, mistrals, both, none = (request.sampling for request in engine.requests)
    assert named == mistrals == both == replace(none, seed=5) != none


def test_an_answer_names_what_is_served(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("fine")
    name = f"fp_{WELCOME.fingerprint.hex()[:12]}"
    assert asked(http, QUESTION).json()["system_fingerprint"] == name
    # Cerebras' Python client reads no chunk without this field
    events = asked(http, QUESTION, stream=True).text.split("\n\n")
    chunks = [json.loads(one[6:]) for one in events if one.startswith("data: {")]
    assert {one["system_fingerprint"] for one in chunks} == {name}
