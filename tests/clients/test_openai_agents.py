"""openai-agents calls tools, streams, hands over and gets typed output, with Responses (its
default) and with chat completions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import agent, answer
from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served

agents: Any = pytest.importorskip("agents")


class Weather(BaseModel):
    city: str
    days: int


@pytest.fixture(params=["responses", "chat"])
async def model(request: pytest.FixtureRequest, url: str, served: Served) -> AsyncIterator[Any]:
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=url, api_key=served.key, max_retries=0) as client:
        provider = agents.OpenAIProvider(
            openai_client=client, use_responses=None if request.param == "responses" else False
        )
        yield provider.get_model(MODEL)


async def weather(city: str, days: int) -> str:
    """The weather there."""
    return f"rain in {city}, {days} days"


async def test_a_tool_is_called_and_its_result_answered(model: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    tools = [agents.function_tool(weather)]
    done = await agents.Runner.run(agents.Agent(name="a", model=model, tools=tools), "Hi")
    assert done.final_output == "It rains."
    assert len(engine.requests) == 2


@pytest.mark.parametrize("model", ["responses"], indirect=True)
async def test_a_deferred_tool_is_called_beside_a_search_that_does_not_run_here(
    model: Any, engine: FakeEngine
) -> None:
    engine.script = agent("weather", "It rains.")
    tools = [agents.function_tool(weather, defer_loading=True), agents.ToolSearchTool()]
    done = await agents.Runner.run(agents.Agent(name="a", model=model, tools=tools), "Hi")
    assert done.final_output == "It rains."


async def test_streamed(model: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    tools = [agents.function_tool(weather)]
    run = agents.Runner.run_streamed(agents.Agent(name="a", model=model, tools=tools), "Hi")
    kinds = [event.type async for event in run.stream_events()]
    assert run.final_output == "It rains."
    assert "run_item_stream_event" in kinds


async def test_a_type_of_output(model: Any, engine: FakeEngine) -> None:
    engine.script = saying(answer())
    one = agents.Agent(name="a", model=model, output_type=Weather)
    assert (await agents.Runner.run(one, "Hi")).final_output == Weather(city="Oslo", days=2)
    grammar = engine.requests[0].sampling.grammar
    assert grammar is not None
    assert "city" in grammar.text


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_tools_and_a_type_of_output(model: Any, engine: FakeEngine, choice: str) -> None:
    engine.script = agent("weather", answer())
    one = agents.Agent(
        name="a",
        model=model,
        tools=[agents.function_tool(weather)],
        output_type=Weather,
        model_settings=agents.ModelSettings(tool_choice=choice, parallel_tool_calls=False),
    )
    assert (await agents.Runner.run(one, "Hi")).final_output == Weather(city="Oslo", days=2)
    assert len(engine.requests) == 2


async def test_a_handoff(model: Any, engine: FakeEngine) -> None:
    other = agents.Agent(name="other", model=model)
    one = agents.Agent(name="one", model=model, handoffs=[other])

    def script(request: Any) -> list[int]:
        call = '<tool_call>\n{"name": "transfer_to_other", "arguments": {}}\n</tool_call>'
        return list((call if len(engine.requests) == 1 else "Here.").encode())

    engine.script = script
    done = await agents.Runner.run(one, "Hi")
    assert (done.final_output, done.last_agent.name) == ("Here.", "other")


async def test_a_conversation_that_the_server_holds(
    url: str, served: Served, engine: FakeEngine
) -> None:
    agents.set_tracing_disabled(True)
    engine.script = agent("weather", "It rains.")
    tools = [agents.function_tool(weather)]
    async with openai.AsyncOpenAI(base_url=url, api_key=served.key, max_retries=0) as client:
        model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
        one = agents.Agent(name="a", model=model, tools=tools)
        first = await agents.Runner.run(one, "Hi", auto_previous_response_id=True)
        assert first.final_output == "It rains."
        engine.script = saying("Still.")
        then = await agents.Runner.run(one, "And now?", previous_response_id=first.last_response_id)
    assert then.final_output == "Still."
    prompt = bytes(prompt_of(engine.requests[-1])).decode()
    assert "Hi" in prompt
    assert "It rains." in prompt


async def test_a_hosted_tool_is_passed_over(url: str, served: Served, engine: FakeEngine) -> None:
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=url, api_key=served.key, max_retries=0) as client:
        model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
        one = agents.Agent(name="a", model=model, tools=[agents.WebSearchTool()])
        engine.script = saying("It rains.")
        assert (await agents.Runner.run(one, "Hi")).final_output == "It rains."
