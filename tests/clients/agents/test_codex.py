"""Codex runs a command, searches for tools, calls them, and applies a patch.

It runs from the command line with its default settings and its own home directory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.clients import node
from tests.clients.conftest import serving_qwen
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, prompt_of
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import written

KNOWN = "gpt-5.5"
PATCH = "*** Begin Patch\n*** Add File: notes.txt\n+It rains.\n*** End Patch\n"
CONFIG = """\
model = "{model}"
model_provider = "ratoon"
features.view_image = false
[model_providers.ratoon]
name = "Ratoon"
base_url = "{url}/v1"
env_key = "RATOON_KEY"
wire_api = "responses"
"""
Ask = Callable[..., str]


@pytest.fixture(scope="module")
def module_engine() -> FakeEngine:
    """Make an engine for prompts of 60,000 bytes, each of which is one token."""
    return FakeEngine(msgspec.structs.replace(WELCOME, max_model_len=1_000_000))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine) -> Any:
    with serving_qwen(tmp_path_factory, module_engine) as gateway:
        yield gateway


@pytest.fixture
def ask(served: Served, tmp_path: Path) -> Ask:
    """Return a function that runs Codex on a question, and returns the printed text."""
    program = node.package("@openai/codex").parents[1] / ".bin" / "codex"
    home = tmp_path / ".codex"
    home.mkdir()

    def asked(prompt: str, *options: str, gateway: Served = served, model: str = MODEL) -> str:
        config = CONFIG.format(model=model, url=gateway.url)
        (home / "config.toml").write_text(config)
        command = [str(program), "exec", "--skip-git-repo-check", *options, prompt]
        return node.run(command, tmp_path, {"RATOON_KEY": gateway.key})

    return asked


def prompts(engine: FakeEngine) -> list[str]:
    """Return the texts of all prompts."""
    return [
        bytes(one for one in prompt_of(request) if one < 256).decode()
        for request in engine.requests
    ]


def saying_in_turn(engine: FakeEngine, *texts: str) -> None:
    """Let the model answer request n with text n."""
    left = [*texts]
    engine.script = lambda _: list(left.pop(0).encode())


def test_it_runs_a_command_and_says_what_it_saw(ask: Ask, engine: FakeEngine) -> None:
    saying_in_turn(engine, written(("exec_command", {"cmd": "echo ra''in"})), "It rains.")
    assert ask("How is it?").strip().endswith("It rains.")
    first, second = prompts(engine)
    assert '"close_agent"' in first
    assert "web_search" not in first
    assert "view_image" not in first
    assert "rain" in second[len(first) :]
    assert second.startswith(first), "its prefix is found again"


def test_a_call_of_a_namespace_reaches_its_tool(ask: Ask, engine: FakeEngine) -> None:
    saying_in_turn(engine, written(("close_agent", {"target": "nobody"})), "Nobody is there.")
    ask("Stop it.")
    first, second = prompts(engine)
    assert "invalid agent id nobody" in second[len(first) - 20 :]


def test_it_searches_for_tools_and_applies_a_patch(
    ask: Ask, engine: FakeEngine, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Search for tools and apply a patch.

    Codex offers tools that are not functions to models whose names it knows.
    """
    saying_in_turn(
        engine,
        written(("tool_search", {"query": "agents"})),
        written(("spawn_agent", {"message": ""})),
        written(("apply_patch", {"input": PATCH})),
        "Done.",
    )
    with serving_qwen(tmp_path_factory, engine, KNOWN) as gateway:
        ask("Note it.", "--sandbox", "workspace-write", gateway=gateway, model=KNOWN)
    assert (tmp_path / "notes.txt").read_text() == "It rains.\n"
    *_, spawned, patched = prompts(engine)
    assert "These tools are available from here on:" in spawned
    assert "A notes.txt" in patched
