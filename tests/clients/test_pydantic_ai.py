"""pydantic-ai's class for chat completions calls tools, streams, and gets typed output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import OSLO, agent, answer
from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import written

pydantic_ai: Any = pytest.importorskip("pydantic_ai")


class Weather(BaseModel):
    city: str
    days: int


@pytest.fixture
async def model(url: str, served: Served) -> AsyncIterator[Any]:
    models: Any = pytest.importorskip("pydantic_ai.models.openai")
    providers: Any = pytest.importorskip("pydantic_ai.providers.openai")
    async with openai.AsyncOpenAI(base_url=url, api_key=served.key, max_retries=0) as client:
        provider = providers.OpenAIProvider(openai_client=client)
        yield models.OpenAIChatModel(MODEL, provider=provider)


def weather(city: str, days: int) -> str:
    """The weather there."""
    return f"rain in {city}, {days} days"


async def test_a_tool_is_called_and_its_result_answered(model: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    done = await pydantic_ai.Agent(model, tools=[weather]).run("Hi")
    assert done.output == "It rains."
    assert len(engine.requests) == 2


async def test_thinking_comes_back_as_it_was_written_by_messages(
    served: Served, engine: FakeEngine
) -> None:
    models: Any = pytest.importorskip("pydantic_ai.models.anthropic")
    providers: Any = pytest.importorskip("pydantic_ai.providers.anthropic")
    call = f"<think>\nso\n</think>\n\n{written(('weather', OSLO))}"
    engine.script = lambda _: list((call if len(engine.requests) == 1 else "It rains.").encode())
    async with anthropic.AsyncAnthropic(
        base_url=served.url, api_key=served.key, max_retries=0
    ) as client:
        provider = providers.AnthropicProvider(anthropic_client=client)
        model = models.AnthropicModel(MODEL, provider=provider)
        thinking = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}
        asking = pydantic_ai.Agent(model, tools=[weather], model_settings=thinking)
        assert (await asking.run("Hi")).output == "It rains."
    first, second = (bytes(prompt_of(one)).decode() for one in engine.requests)
    assert second.startswith(f"{first}{call}")


async def test_streamed(model: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    async with pydantic_ai.Agent(model, tools=[weather]).run_stream("Hi") as run:
        assert await run.get_output() == "It rains."


async def test_output_by_a_tool(model: Any, engine: FakeEngine) -> None:
    engine.script = saying(written(("final_result", OSLO)))
    done = await pydantic_ai.Agent(model, output_type=Weather).run("Hi")
    assert done.output == Weather(city="Oslo", days=2)
    assert engine.requests[0].sampling.grammar is not None


@pytest.mark.parametrize("how", ["NativeOutput", "PromptedOutput"])
async def test_output_as_text(model: Any, engine: FakeEngine, how: str) -> None:
    engine.script = saying(answer())
    output = getattr(pydantic_ai, how)(Weather)
    done = await pydantic_ai.Agent(model, output_type=output).run("Hi")
    assert done.output == Weather(city="Oslo", days=2)


async def test_native_output_with_tools(model: Any, engine: FakeEngine) -> None:
    engine.script = agent("weather", answer())
    output = pydantic_ai.NativeOutput(Weather)
    done = await pydantic_ai.Agent(model, output_type=output, tools=[weather]).run("Hi")
    assert done.output == Weather(city="Oslo", days=2)
    assert len(engine.requests) == 2
