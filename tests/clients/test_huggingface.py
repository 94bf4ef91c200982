"""huggingface_hub's InferenceClient gets chats, streams, and its own types of tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.conftest import OSLO, agent, answer
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import written

hub: Any = pytest.importorskip("huggingface_hub")

HI = [{"role": "user", "content": "Hi"}]
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PLACE}}]


@pytest.fixture
def client(url: str, served: Served) -> Iterator[Any]:
    with hub.InferenceClient(base_url=url, api_key=served.key) as one:
        yield one


def test_a_text(client: Any, engine: FakeEngine) -> None:
    engine.script = saying("<think>\nso\n</think>\n\nHello.")
    said = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=100)
    message = said.choices[0].message
    assert (message.content, message.reasoning) == ("Hello.", "so")


def test_a_model_must_be_named(client: Any, engine: FakeEngine) -> None:
    with pytest.raises(hub.errors.HfHubHTTPError, match="there is no model of that name"):
        client.chat_completion(HI)


def test_a_stream(client: Any, engine: FakeEngine) -> None:
    engine.script = saying("Hello.")
    chunks = client.chat_completion(HI, model=MODEL, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello."


def test_a_call_by_a_choice_without_a_type(client: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    named = hub.ChatCompletionInputToolChoiceClass(
        function=hub.ChatCompletionInputFunctionName(name="weather")
    )
    asked = client.chat_completion(HI, model=MODEL, tools=TOOLS, tool_choice=named)
    [call] = asked.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", OSLO)
    assert engine.requests[0].sampling.grammar is not None


def test_a_streamed_call(client: Any, engine: FakeEngine) -> None:
    engine.script = saying(written(("weather", OSLO)))
    chunks = client.chat_completion(
        HI, model=MODEL, tools=TOOLS, tool_choice="required", stream=True
    )
    deltas = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
    assert json.loads("".join(one.function.arguments for one in deltas)) == OSLO


FORMATS = {
    "schema": {"type": "json_schema", "json_schema": {"name": "w", "schema": PLACE}},
    "its own servers' schema": {"type": "json", "value": PLACE},
    "any object": {"type": "json_object"},
    "its own servers' regex": {"type": "regex", "value": "(Oslo|Rome)"},
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format(client: Any, engine: FakeEngine, name: str) -> None:
    engine.script = saying(answer())
    said = client.chat_completion(HI, model=MODEL, response_format=FORMATS[name])
    assert said.choices[0].message.content == answer()
    assert engine.requests[0].sampling.grammar is not None
