"""litellm calls tools, streams and gets structured output, under both of its provider names for
OpenAI-compatible servers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.clients.conftest import OSLO, agent, answer
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import HI, WEATHER

litellm: Any = pytest.importorskip("litellm")


class Weather(BaseModel):
    city: str
    days: int


@pytest.fixture(params=["openai", "hosted_vllm"])
def ask(request: pytest.FixtureRequest, url: str, served: Served) -> Any:
    def completion(**fields: Any) -> Any:
        place = {"model": f"{request.param}/{MODEL}", "api_base": url, "api_key": served.key}
        return litellm.completion(**place, max_retries=0, **fields)

    return completion


def test_a_tool_is_called_and_its_result_answered(ask: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    message = ask(messages=HI, tools=[WEATHER]).choices[0].message
    [call] = message.tool_calls
    assert json.loads(call.function.arguments) == OSLO
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    answered = ask(messages=[*HI, message, result], tools=[WEATHER])
    assert answered.choices[0].message.content == "It rains."


def test_streamed(ask: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    chunks = list(ask(messages=HI, tools=[WEATHER], tool_choice="required", stream=True))
    built = litellm.stream_chunk_builder(chunks)
    [call] = built.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == OSLO


@pytest.mark.parametrize("form", [Weather, {"type": "json_object"}])
def test_structured_output(ask: Any, engine: FakeEngine, form: Any) -> None:
    engine.script = saying(answer())
    said = ask(messages=HI, response_format=form)
    assert json.loads(said.choices[0].message.content) == OSLO
    assert engine.requests[0].sampling.grammar is not None


def test_reasoning(ask: Any, engine: FakeEngine) -> None:
    engine.script = saying("<think>\nso\n</think>\n\nYes.")
    message = ask(messages=HI).choices[0].message
    assert (message.reasoning_content, message.content) == ("so", "Yes.")
