"""LangChain's class for OpenAI's API calls tools, streams, and gets structured output by each of
its methods.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from tests.clients.conftest import OSLO, agent, answer
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import written

langchain: Any = pytest.importorskip("langchain_openai")


class Weather(BaseModel):
    """The weather there."""

    city: str
    days: int


@pytest.fixture
def model(url: str, served: Served) -> Any:
    return langchain.ChatOpenAI(model=MODEL, base_url=url, api_key=served.key, max_retries=0)


def test_a_tool_is_called_and_its_result_answered(model: Any, engine: FakeEngine) -> None:
    engine.script = agent("Weather", "It rains.")
    bound = model.bind_tools([Weather])
    said = bound.invoke("Hi")
    [call] = said.tool_calls
    assert (call["name"], call["args"]) == ("Weather", OSLO)
    result = {"role": "tool", "content": "rain", "tool_call_id": call["id"]}
    assert bound.invoke([("user", "Hi"), said, result]).content == "It rains."


@pytest.mark.parametrize("choice", ["any", "required", "Weather", True])
def test_a_call_that_must_be_made(model: Any, engine: FakeEngine, choice: Any) -> None:
    engine.script = saying(written(("Weather", OSLO)))
    said = model.bind_tools([Weather], tool_choice=choice, strict=True).invoke("Hi")
    assert said.tool_calls[0]["args"] == OSLO
    assert engine.requests[0].sampling.grammar is not None


def test_streamed(model: Any, engine: FakeEngine) -> None:
    engine.script = saying(written(("Weather", OSLO)))
    first, *rest = model.bind_tools([Weather]).stream("Hi")
    for chunk in rest:
        first += chunk
    assert first.tool_calls[0]["args"] == OSLO


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(model: Any, engine: FakeEngine, method: str) -> None:
    called = method == "function_calling"
    engine.script = saying(written(("Weather", OSLO)) if called else answer())
    found = model.with_structured_output(Weather, method=method).invoke("Hi, as JSON")
    assert found == Weather(city="Oslo", days=2)
    assert engine.requests[0].sampling.grammar is not None
