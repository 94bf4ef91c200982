"""Requests for the tests of the Messages API, and accessors for what the engine and the client
receive.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
from anthropic.types import Message

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.engine.tiny_model import BOS, TURN
from tests.doubles.gateway.served import MODEL

HI: list[Any] = [{"role": "user", "content": "hi"}]
CLOCK: dict[str, Any] = {
    "name": "clock",
    "description": "tells the time",
    "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}},
}
ALARM: dict[str, Any] = {"name": "alarm", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
USE = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {"zone": "UTC"}}


def ask(client: anthropic.Anthropic, **fields: Any) -> Message:
    """Send "hi" and ask for at most 400 tokens, unless `fields` say otherwise; return the
    answer.
    """
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 400, "messages": HI, **fields}
    answer: Message = client.messages.create(**asked)
    return answer


def blocks_of(message: Message) -> list[Any]:
    """Return a message's content blocks without types, for tests that know the types."""
    return list(message.content)


def post(http: httpx.Client, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    """Send a request over HTTP, without the fields that are None."""
    body = {"model": MODEL, "max_tokens": 400, "messages": HI, **fields}
    return http.post(path, json={name: one for name, one in body.items() if one is not None})


def shown(engine: FakeEngine) -> str:
    """Return the prompt of the last request, with `|` at the beginning of each turn."""
    ids = prompt_of(engine.requests[-1])
    assert ids[0] == BOS
    return bytes(ord("|") if one == TURN else one for one in ids[1:]).decode()


def prompt_for(engine: FakeEngine, client: anthropic.Anthropic, *turns: Any, **fields: Any) -> str:
    """Send these turns; return the prompt that the model reads."""
    ask(client, messages=list(turns), **fields)
    return shown(engine)


def user(content: Any) -> dict[str, Any]:
    """Make a turn of the user."""
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    """Make a turn of the assistant."""
    return {"role": "assistant", "content": content}


def events_of(answer: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """Return each event's name and data; check that the data's `type` is the name."""
    frames = [frame.split("\n") for frame in answer.text.split("\n\n") if frame]
    events = []
    for named, data in frames:
        name = named.removeprefix("event: ")
        value = json.loads(data.removeprefix("data: "))
        assert value.pop("type") == name
        events.append((name, value))
    return events


def error_of(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """Return an answer's error; check that it has all of Anthropic's error fields."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"]
    assert "x-request-id" not in answer.headers
    error: dict[str, Any] = body["error"]
    assert error["type"] == kind
    assert error["details"] == {"error_code": error["code"]}
    return error
