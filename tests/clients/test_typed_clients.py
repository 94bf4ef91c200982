"""Clients that are generated from descriptions of other APIs accept every field of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.conftest import OSLO, agent, answer
from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served

QUESTION = {"role": "user", "content": "Hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather there",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


@pytest.fixture
def mistral(served: Served) -> Iterator[Any]:
    made = pytest.importorskip("mistralai.client").Mistral
    with made(api_key=served.key, server_url=served.url) as client:
        yield client


@pytest.fixture
def openrouter(url: str, served: Served) -> Iterator[Any]:
    made = pytest.importorskip("openrouter").OpenRouter
    with made(api_key=served.key, server_url=url) as client:
        yield client


def completed(client: Any, messages: list[Any], **more: Any) -> Any:
    complete = client.chat.complete if hasattr(client.chat, "complete") else client.chat.send
    return complete(model=MODEL, messages=messages, **more).choices[0].message


@pytest.mark.parametrize(("name", "choice"), [("mistral", "any"), ("openrouter", "required")])
def test_a_tool_is_called_and_its_result_answered(
    engine: FakeEngine, request: pytest.FixtureRequest, name: str, choice: str
) -> None:
    client: Any = request.getfixturevalue(name)
    engine.script = agent("weather", "It rains.")
    called = completed(client, [QUESTION], tools=[WEATHER], tool_choice=choice)
    assert engine.requests[-1].sampling.grammar is not None
    [call] = called.tool_calls
    result = {"role": "tool", "content": f"rain in {OSLO['city']}", "tool_call_id": call.id}
    turn = called.model_dump(exclude_none=True, by_alias=True)
    assert completed(client, [QUESTION, turn, result], tools=[WEATHER]).content == "It rains."


def test_mistrals_calls_stream(mistral: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    with mistral.chat.stream(model=MODEL, messages=[QUESTION], tools=[WEATHER]) as chunks:
        choices = [choice for chunk in chunks for choice in chunk.data.choices]
    [call] = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", OSLO)
    assert choices[-1].finish_reason == "tool_calls"


def test_mistrals_answers_stream_follow_a_schema_and_go_on(
    mistral: Any, engine: FakeEngine
) -> None:
    engine.script = saying("fine")
    with mistral.chat.stream(model=MODEL, messages=[QUESTION]) as chunks:
        choices = [choice for chunk in chunks for choice in chunk.data.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "fine"
    engine.script = saying(answer())
    asked = {"type": "json_object"}
    assert completed(mistral, [QUESTION], response_format=asked).content == answer()
    begun = {"role": "assistant", "content": "Bl", "prefix": True}
    completed(mistral, [QUESTION, begun])
    assert bytes(one for one in prompt_of(engine.requests[-1]) if one < 256).endswith(b"Bl")
    embedded = mistral.embeddings.create(model=MODEL, inputs=["a", "b"])
    assert [one.index for one in embedded.data] == [0, 1]


def test_openrouters_answers_of_each_api(openrouter: Any, engine: FakeEngine) -> None:
    engine.script = saying("fine")
    assert completed(openrouter, [QUESTION]).content == "fine"
    with openrouter.chat.send(model=MODEL, messages=[QUESTION], stream=True) as chunks:
        choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "fine"
    assert openrouter.embeddings.generate(model=MODEL, input=["a"]).data[0].embedding
    answered = openrouter.beta.responses.send(model=MODEL, input="Hi")
    assert answered.output[0].content[0].text == "fine"
    with openrouter.beta.responses.send(model=MODEL, input="Hi", stream=True) as events:
        types = [getattr(event, "type", "") for event in events]
    assert (types[0], types[-1]) == ("response.created", "response.completed")
