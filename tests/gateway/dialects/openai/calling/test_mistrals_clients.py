"""Answers to Mistral's clients have the form of Mistral's API. Positive control: answers to other
clients have OpenAI's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import HI, OSLO, ROME, TOOLS, written

THOUGHT = "I think\nso."
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}], "closed": True}
THOUGHTFUL = f"<think>\n{THOUGHT}\n</think>\n\n"
NAMES = ["mistral-client-python/3.7.0", "mistral-client-typescript/2.2.1"]


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=20) as client:
        yield client


def asked(http: httpx.Client, name: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": HI, "tools": TOOLS, **fields}
    return http.post("/v1/chat/completions", headers={"user-agent": name}, json=body)


def deltas_of(http: httpx.Client, name: str) -> list[dict[str, Any]]:
    events = asked(http, name, stream=True).text.split("\n\n")
    chunks = [json.loads(one[6:]) for one in events if one.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def calls_in(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call for delta in deltas for call in delta.get("tool_calls", ())]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_comes_in_one_chunk(http: httpx.Client, engine: FakeEngine, name: str) -> None:
    engine.script = saying(f"{THOUGHTFUL}Two:{written(OSLO, ROME)}")
    deltas = deltas_of(http, name)
    calls = calls_in(deltas)
    assert [call["index"] for call in calls] == [0, 1]
    assert all(call["id"] for call in calls)
    told = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls]
    assert told == [OSLO, ROME]
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == "Two:"


def test_others_get_a_call_as_it_is_written(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying(f"{THOUGHTFUL}{written(OSLO)}")
    deltas = deltas_of(http, "OpenAI/Python 3.57.0")
    first, *rest = calls_in(deltas)
    assert first["function"] == {"name": "weather", "arguments": ""}
    assert rest
    assert not any("name" in call["function"] for call in rest)


def test_a_message_has_a_text_also_beside_calls(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying(written(OSLO))
    for name, content in ((NAMES[0], ""), ("curl/8.0", None)):
        message = asked(http, name).json()["choices"][0]["message"]
        assert (message["content"], len(message["tool_calls"])) == (content, 1)


def test_thoughts_are_read_where_mistrals_api_writes_them(
    http: httpx.Client, engine: FakeEngine
) -> None:
    """Read a turn that Mistral's API wrote like the same turn in OpenAI's form."""
    result = {"role": "tool", "content": "rain", "tool_call_id": "0"}
    function = {"name": OSLO[0], "arguments": json.dumps(OSLO[1])}
    calls = [{"id": "0", "type": "function", "function": function}]
    parts = [THINKING, {"type": "text", "text": "Let me see."}]
    for turn in (
        {"content": parts},
        {"content": "Let me see.", "reasoning_content": THOUGHT},
        {"content": "Let me see."},
    ):
        said = {"role": "assistant", "tool_calls": calls} | turn
        assert asked(http, NAMES[0], messages=[*HI, said, result]).status_code == 200
    mistrals, openais, without = map(prompt_of, engine.requests)
    assert mistrals == openais != without
    assert THOUGHT.encode() in bytes(one for one in mistrals if one < 256)


def test_a_text_behind_thoughts_keeps_its_breakpoint(
    http: httpx.Client, engine: FakeEngine
) -> None:
    control = {"cache_control": {"type": "ephemeral"}}
    parts = [THINKING, {"type": "text", "text": "Yes."} | control]
    turn = {"role": "assistant", "content": parts}
    assert asked(http, NAMES[0], messages=[*HI, turn, *HI]).status_code == 200
    [request] = engine.requests
    assert len(request.marks) == 1


def test_only_the_assistant_thinks(http: httpx.Client) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Hi"}, THINKING]}
    refused = asked(http, NAMES[0], messages=[message])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages[0].content[1].type"
