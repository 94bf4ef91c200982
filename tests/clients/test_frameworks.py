"""Python frameworks for agents: a tool is called, the model reads its result, and the answer is
typed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from tests.clients.conftest import OSLO, answer
from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.openai.calling.hermes import written

SAID = "It rains."


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    days: int


def weather(city: str, days: int) -> str:
    """The weather there.

    Args:
        city: the place
        days: how many
    """
    return f"rain in {city}, {days} days"


@dataclass(frozen=True)
class Server:
    """The gateway's address and key, as a framework needs them."""

    url: str
    key: str


def _smolagents(server: Server) -> str:
    smolagents = pytest.importorskip("smolagents")
    model = smolagents.OpenAIModel(model_id=MODEL, api_base=server.url, api_key=server.key)
    tools = [smolagents.tool(weather)]
    return str(smolagents.ToolCallingAgent(tools=tools, model=model, verbosity_level=0).run("Hi"))


def _haystack(server: Server) -> str:
    chat = pytest.importorskip("haystack.components.generators.chat")
    agents = pytest.importorskip("haystack.components.agents")
    tools = pytest.importorskip("haystack.tools")
    messages = pytest.importorskip("haystack.dataclasses")
    secret = pytest.importorskip("haystack.utils").Secret.from_token(server.key)
    model = chat.OpenAIChatGenerator(api_key=secret, model=MODEL, api_base_url=server.url)
    tool = tools.create_tool_from_function(weather)
    asked = [messages.ChatMessage.from_user("Hi")]
    done = agents.Agent(chat_generator=model, tools=[tool]).run(messages=asked)
    return str(done["last_message"].text)


def _agno_model(server: Server, name: str) -> Any:
    if name == "messages":
        claude = pytest.importorskip("agno.models.anthropic").Claude
        base = {"base_url": server.url.removesuffix("/v1")}
        return claude(id=MODEL, api_key=server.key, client_params=base)
    if name == "responses":
        kind = pytest.importorskip("agno.models.openai").OpenAIResponses
    else:
        kind = pytest.importorskip("agno.models.openai.like").OpenAILike
    return kind(id=MODEL, base_url=server.url, api_key=server.key)


def _agno(name: str) -> Callable[[Server], str]:
    def run(server: Server) -> str:
        made = pytest.importorskip("agno.agent").Agent
        model = _agno_model(server, name)
        return str(made(model=model, tools=[weather], telemetry=False).run("Hi").content)

    return run


def _chatlas(name: str) -> Callable[[Server], str]:
    def run(server: Server) -> str:
        chatlas = pytest.importorskip("chatlas")
        if name == "messages":
            base = {"base_url": server.url.removesuffix("/v1")}
            chat = chatlas.ChatAnthropic(model=MODEL, api_key=server.key, kwargs=base)
        else:
            made = chatlas.ChatOpenAI if name == "responses" else chatlas.ChatOpenAICompletions
            chat = made(model=MODEL, base_url=server.url, api_key=server.key)
        chat.register_tool(weather)
        return str(chat.chat("Hi", echo="none").get_content())

    return run


AGENTS: dict[str, Callable[[Server], str]] = {
    "smolagents": _smolagents,
    "haystack": _haystack,
    "agno, chats": _agno("chats"),
    "agno, responses": _agno("responses"),
    "agno, messages": _agno("messages"),
    "chatlas, chats": _chatlas("chats"),
    "chatlas, responses": _chatlas("responses"),
    "chatlas, messages": _chatlas("messages"),
}


@pytest.fixture
def server(url: str, served: Any) -> Server:
    return Server(url, served.key)


@pytest.mark.parametrize("name", AGENTS)
def test_a_tool_is_called_and_its_result_answered(
    server: Server, engine: FakeEngine, name: str
) -> None:
    # smolagents expects the final answer as a tool call
    final = written(("final_answer", {"answer": SAID}))
    said = {1: written(("weather", OSLO)), 2: final if name == "smolagents" else SAID}
    engine.script = lambda _: list(said[len(engine.requests)].encode())
    assert AGENTS[name](server) == SAID
    assert b"rain in Oslo" in bytes(one for one in prompt_of(engine.requests[1]) if one < 256)


def test_a_typed_answer_of_agno(server: Server, engine: FakeEngine) -> None:
    engine.script = saying(answer())
    made = pytest.importorskip("agno.agent").Agent
    model = _agno_model(server, "chats")
    done = made(model=model, output_schema=Weather, telemetry=False).run("Hi")
    assert done.content.model_dump() == OSLO
    assert engine.requests[0].sampling.grammar is not None


def test_a_signature_of_dspy(server: Server, engine: FakeEngine) -> None:
    dspy = pytest.importorskip("dspy")
    engine.script = saying("[[ ## answer ## ]]\nIt rains.\n\n[[ ## completed ## ]]")
    model = dspy.LM(f"openai/{MODEL}", api_base=server.url, api_key=server.key, cache=False)
    with dspy.context(lm=model):
        assert dspy.Predict("question -> answer")(question="Hi").answer == SAID
