"""JSON within the strings of a request: every dialect limits the total of all strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served

# number of lists in one string; a request with two of these strings is within the limit
HELD = 3_000
FEW, MANY = 2, 30
ARGUMENTS = '{"a": [' + ",".join(["[]"] * HELD) + "]}"
USER = {"role": "user", "content": "hi"}
Asked = tuple[str, dict[str, Any]]


def chat(times: int) -> Asked:
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": ARGUMENTS}}
    said = {"role": "assistant", "tool_calls": [call] * times}
    return "/v1/chat/completions", {"messages": [USER, said, USER]}


def chat_by_messages(times: int) -> Asked:
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": ARGUMENTS}}
    return "/v1/chat/completions", {
        "messages": [USER, *[{"role": "assistant", "tool_calls": [call]}] * times, USER]
    }


def function_calls(times: int) -> Asked:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": ARGUMENTS}
    return "/v1/responses", {"input": [*[call] * times, USER], "store": False}


def hosted_calls(times: int) -> Asked:
    call = {"type": "mcp_call", "id": "m", "name": "f", "arguments": ARGUMENTS, "output": "."}
    return "/v1/responses", {"input": [*[call] * times, USER], "store": False}


def counted(times: int) -> Asked:
    return "/v1/responses/input_tokens", function_calls(times)[1] | {"store": None}


@pytest.mark.parametrize("asked", [chat, chat_by_messages, function_calls, hosted_calls, counted])
def test_strings_that_are_within_the_bound_alone_are_refused_together(
    served: Served, engine: FakeEngine, asked: Callable[[int], Asked]
) -> None:
    del engine

    def said_to(times: int) -> str:
        path, body = asked(times)
        headers = {"authorization": f"Bearer {served.key}"}
        body = {name: value for name, value in body.items() if value is not None}
        answer = httpx.post(
            served.url + path, json={"model": MODEL, **body}, headers=headers, timeout=60
        )
        return answer.text

    assert "arrays and objects" in said_to(MANY)
    assert "arrays and objects" not in said_to(FEW), "the control"
