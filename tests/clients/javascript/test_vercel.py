"""Vercel's `ai` gets texts, streams, objects and errors, and calls tools, with its providers for
Responses, chat completions and Messages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients import node
from tests.clients.conftest import OSLO, agent, answer
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import written

SCRIPT = Path(__file__).with_name("vercel.mjs")
# OpenAI's provider reads reasoning only as summaries, and not in chats. Mistral's provider reads it
# only as parts of the content.
REASONING = {"responses": None, "chat": None, "mistral": None}
PACKAGES = {
    "responses": "@ai-sdk/openai",
    "chat": "@ai-sdk/openai",
    "compatible": "@ai-sdk/openai-compatible",
    "anthropic": "@ai-sdk/anthropic",
    "groq": "@ai-sdk/groq",
    "mistral": "@ai-sdk/mistral",
    "cerebras": "@ai-sdk/cerebras",
    "deepseek": "@ai-sdk/deepseek",
    "openrouter": "@openrouter/ai-sdk-provider",
}
Ask = Callable[[str], Any]


@pytest.fixture(params=PACKAGES)
def provider(request: pytest.FixtureRequest) -> str:
    node.package("ai")
    node.package(PACKAGES[request.param])
    return str(request.param)


@pytest.fixture
def ask(provider: str, served: Served, tmp_path: Path) -> Ask:
    def asked(task: str) -> Any:
        environment = {
            "CLIENTS_NODE_MODULES": os.environ["CLIENTS_NODE_MODULES"],
            "RATOON_URL": served.url,
            "RATOON_KEY": served.key,
            "RATOON_MODEL": MODEL,
        }
        return json.loads(node.run(["node", str(SCRIPT), provider, task], tmp_path, environment))

    return asked


def test_a_text(ask: Ask, engine: FakeEngine, provider: str) -> None:
    engine.script = saying("<think>\nso\n</think>\n\nHello.")
    said = ask("text")
    assert said == {
        "text": "Hello.",
        "reasoning": REASONING.get(provider, "so"),
        "finishReason": "stop",
        "outputTokens": engine_tokens("<think>\nso\n</think>\n\nHello."),
    }


def test_a_stream(ask: Ask, engine: FakeEngine) -> None:
    engine.script = saying("Hello.")
    said = ask("stream")
    assert (said["text"], said["outputTokens"]) == ("Hello.", engine_tokens("Hello."))


@pytest.mark.parametrize("task", ["tools", "stream_tools"])
def test_a_tool_is_called_and_its_result_answered(ask: Ask, engine: FakeEngine, task: str) -> None:
    engine.script = agent("weather", "It rains.")
    said = ask(task)
    assert said["text"] == "It rains."
    assert len(engine.requests) == 2
    if task == "tools":
        assert said["calls"] == [OSLO]
    else:
        assert {"tool-call", "tool-result"} <= set(said["kinds"])


def test_a_call_that_must_be_made(ask: Ask, engine: FakeEngine) -> None:
    engine.script = saying(written(("weather", OSLO)))
    assert ask("required") == {"calls": [OSLO]}
    assert engine.requests[0].sampling.grammar is not None


def test_an_object(ask: Ask, engine: FakeEngine, provider: str) -> None:
    # For an Anthropic model that the provider does not know, it asks for a call of this tool.
    called = provider == "anthropic"
    engine.script = saying(written(("json", OSLO)) if called else answer())
    assert ask("object") == {"object": OSLO}
    assert engine.requests[0].sampling.grammar is not None


def test_an_error_says_why(ask: Ask) -> None:
    assert re.search(r"top_?p", ask("refused")["error"], re.IGNORECASE)


def engine_tokens(text: str) -> int:
    """Return the engine's number of tokens: one for each byte, and the end token."""
    return len(text.encode()) + 1
