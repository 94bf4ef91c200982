"""Packages of OpenAI, Anthropic and LangChain in node get texts and objects, and call tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients import node
from tests.clients.conftest import OSLO, agent, answer
from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served

SCRIPT = Path(__file__).with_name("javascript.mjs")
PACKAGES = {
    "openai": "openai",
    "anthropic": "@anthropic-ai/sdk",
    "langchain": "@langchain/openai",
    "langchain, responses": "@langchain/openai",
}
Ask = Callable[[str], Any]


@pytest.fixture(params=PACKAGES)
def ask(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Ask:
    """Return a function that runs a client script for a task, and returns its output."""
    where = node.package(PACKAGES[request.param])
    environment = {
        "CLIENTS_NODE_MODULES": str(where.parents[len(Path(PACKAGES[request.param]).parts)]),
        "RATOON_URL": served.url,
        "RATOON_KEY": served.key,
        "RATOON_MODEL": MODEL,
    }
    return lambda task: json.loads(
        node.run(["node", str(SCRIPT), request.param, task], tmp_path, environment)
    )


@pytest.mark.parametrize("task", ["text", "stream"])
def test_a_text(ask: Ask, engine: FakeEngine, task: str) -> None:
    engine.script = saying("<think>\nso\n</think>\n\nHello.")
    assert ask(task) == "Hello."


def test_an_object(ask: Ask, engine: FakeEngine) -> None:
    engine.script = saying(answer())
    assert ask("object") == OSLO
    assert engine.requests[0].sampling.grammar is not None


def test_a_tool_is_called_and_its_result_answered(ask: Ask, engine: FakeEngine) -> None:
    engine.script = agent("weather", "It rains.")
    assert ask("tools") == "It rains."
    assert len(engine.requests) == 2


@pytest.mark.parametrize("ask", ["anthropic"], indirect=True)
def test_a_thread_is_continued(ask: Ask, engine: FakeEngine) -> None:
    engine.script = saying("Hello.")
    assert ask("thread") == "Hello."
    assert len(engine.requests) == 3, "no turn was sent again"
    said = bytes(one for one in prompt_of(engine.requests[-1]) if one < 256).decode()
    assert [said.count(one) for one in ("Hi", "And?", "So?", "Hello.")] == [1, 1, 1, 2]
