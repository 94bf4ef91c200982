"""A request's tools are checked, and shown to the model as sent; the model sees no other tools.

The tiny model's template writes calls in no known format.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from gateway.errors import BadRequest
from gateway.prompts.chats.chat_tools import MAX_TOOLS, SentTools
from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.engine.tiny_model import BOS, TURN
from tests.doubles.gateway.served import MODEL, Served

MESSAGES = [{"role": "user", "content": "hi"}]
CLOCK = {
    "function": {
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}, "at": {}}},
        "name": "clock",
        "x-own": [1, 2.0, None, 1e22, 10**25],
    },
    "type": "function",
}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
FULL = {
    "type": "function",
    "function": {"name": "f", "description": "tells é", "parameters": {}, "strict": True},
}


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@pytest.mark.parametrize(
    "tools",
    [
        [CLOCK],
        [NAMED, FULL],
        [NAMED] * MAX_TOOLS,
        [{"type": "function", "function": {**NAMED["function"], "strict": None}}],
    ],
)
def test_good_tools_stay_as_they_were_sent(tools: list[dict[str, Any]]) -> None:
    # in the same order as in the request
    assert json.dumps(SentTools.of(raw(tools)).forms) == json.dumps(tools)


def test_a_tool_without_a_type_is_a_function() -> None:
    assert SentTools.of(raw([{"function": NAMED["function"]}])).forms == (NAMED,)


@pytest.mark.parametrize("spelled", [b"", b"null", b"[]", b"[ \n]"])
def test_an_empty_list_is_as_none(spelled: bytes) -> None:
    assert SentTools.of(msgspec.Raw(spelled)) == SentTools()


BAD = {
    "no list": ({}, "tools"),
    "false": (False, "tools"),
    "a text": ("f", "tools"),
    "too many": ([NAMED] * (MAX_TOOLS + 1), "tools"),
    "a text in the list": ([NAMED, "f"], "tools[1]"),
    "null in the list": ([None], "tools[0]"),
    "an empty object": ([{}], "tools[0].function"),
    "no known field": ([{"name": "f"}], "tools[0].function"),
    "no custom": ([NAMED, NAMED, {**NAMED, "type": "custom"}], "tools[2].custom"),
    "no function": ([{"type": "function"}], "tools[0].function"),
    "no name": ([NAMED] * 3 + [{"type": "function", "function": {}}], "tools[3].function.name"),
    "an empty name": ([{**NAMED, "function": {"name": ""}}], "tools[0].function.name"),
    "a number": ([{**NAMED, "function": {"name": 1}}], "tools[0].function.name"),
    "description": (
        [{**NAMED, "function": {"name": "f", "description": {}}}],
        "tools[0].function.description",
    ),
    "parameters": (
        [{**NAMED, "function": {"name": "f", "parameters": []}}],
        "tools[0].function.parameters",
    ),
    "strict": ([{**NAMED, "function": {"name": "f", "strict": 1}}], "tools[0].function.strict"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(name: str) -> None:
    tools, param = BAD[name]
    with pytest.raises(BadRequest) as refused:
        SentTools.of(raw(tools))
    assert refused.value.param == param


def ask(served: Served, path: str = "/v1/chat/completions", **changes: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1, **changes}
    headers = {"authorization": f"Bearer {served.key}"}
    return httpx.post(f"{served.url}{path}", json=body, headers=headers, timeout=60)


def test_the_model_sees_tools_as_they_were_sent(served: Served, engine: FakeEngine) -> None:
    tools = [CLOCK, FULL]
    assert ask(served, tools=tools, tool_choice="none").status_code == 200
    [request] = engine.requests
    shown = f"tools:{json.dumps(tools, ensure_ascii=False)}".encode()
    prompt = [BOS, TURN, *shown, TURN, *b"user:hi", TURN, *b"assistant:"]
    assert prompt_of(request) == prompt
    assert ask(served, "/tokenize", tools=tools).json()["tokens"] == prompt


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_without_tools_the_choice_changes_nothing(
    served: Served, engine: FakeEngine, tools: list[Any] | None, choice: str | None
) -> None:
    assert ask(served, tools=tools, tool_choice=choice).status_code == 200
    assert prompt_of(engine.requests[0]) == [BOS, TURN, *b"user:hi", TURN, *b"assistant:"]


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"tool_choice": None},
        {"tool_choice": "auto"},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)
def test_tools_that_nobody_knows_how_to_call_are_refused(
    served: Served, engine: FakeEngine, choice: dict[str, Any]
) -> None:
    answer = ask(served, tools=[NAMED], **choice)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_parameter")
    assert error["param"] == "tools"
    assert "--chat-template" in error["message"]
    assert '`tool_choice` is "none"' in error["message"]
    assert engine.requests == []


def test_errors_do_not_repeat_tools(served: Served, engine: FakeEngine) -> None:
    canary = "canary-0c4e77d1"
    bodies: list[dict[str, Any]] = [
        {"tools": [{"type": "function", "function": {"name": canary, "parameters": canary}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": {canary: 1}}}]},
        {"tools": [{"type": "function", "function": {"name": canary * 1000}}]},
        {"tools": [{"type": "function", "function": {"name": canary}}], "tool_choice": "auto"},
    ]
    for changes in bodies:
        answer = ask(served, **{"tool_choice": "none", **changes})
        assert answer.status_code == 400
        assert canary not in answer.text


def test_tokenize_takes_tools_with_messages_only(served: Served, engine: FakeEngine) -> None:
    headers = {"authorization": f"Bearer {served.key}"}
    body = {"prompt": "hi", "tools": [NAMED]}
    answer = httpx.post(f"{served.url}/tokenize", json=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"
    assert ask(served, "/tokenize", tools=[{}]).json()["error"]["param"] == "tools[0].function"
