"""Installed coding agents, run from the command line, each with its own home directory.

Each agent reads a file through its own tool, prints the model's answer, and finds its prompt in the
cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.link.messages import Generate
from tests.clients import node
from tests.clients.conftest import serving_qwen
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import written

QUESTION = "What does note.txt say?"
NOTE = "rain in Oslo"
# share of a prompt that the next prompt repeats; this engine does not cache answers
SHARED = 0.9


@dataclass(frozen=True)
class Agent:
    """An agent's set-up and command line; its configuration is that of `docs/how-to/agents`."""

    package: str
    program: str
    asked: Callable[[Path, str, str], tuple[list[str], dict[str, str]]]
    # the tool that reads the file, and its arguments
    call: tuple[str, Callable[[Path], dict[str, Any]]]


def opencode(home: Path, url: str, key: str) -> tuple[list[str], dict[str, str]]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Ratoon",
        "options": {"baseURL": f"{url}/v1", "apiKey": key},
        "models": {MODEL: {"name": MODEL, "limit": {"context": 1_000_000, "output": 4096}}},
    }
    name = f"ratoon/{MODEL}"
    config = {"provider": {"ratoon": provider}, "model": name, "small_model": name}
    (home / "opencode.json").write_text(json.dumps(config))
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return ["run", "--format", "json", QUESTION], quiet


def qwen_code(home: Path, url: str, key: str) -> tuple[list[str], dict[str, str]]:
    environment = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key, "OPENAI_MODEL": MODEL}
    return ["-p", QUESTION, "--yolo", "--output-format", "json"], environment


def pi(home: Path, url: str, key: str) -> tuple[list[str], dict[str, str]]:
    model = {"id": MODEL, "name": MODEL, "contextWindow": 100_000, "maxTokens": 4000}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": key}
    place = home / ".pi" / "agent"
    place.mkdir(parents=True, exist_ok=True)
    models = {"providers": {"ratoon": {**provider, "models": [model]}}}
    (place / "models.json").write_text(json.dumps(models))
    options = ["-p", "--provider", "ratoon", "--model", MODEL, "--mode", "json"]
    return [*options, QUESTION], {"PI_OFFLINE": "1"}


def continue_cli(home: Path, url: str, key: str) -> tuple[list[str], dict[str, str]]:
    model = {"name": MODEL, "provider": "openai", "model": MODEL, "apiBase": f"{url}/v1"}
    config = {"name": "r", "version": "0.0.1", "schema": "v1", "models": [{**model, "apiKey": key}]}
    (home / "config.yaml").write_text(json.dumps(config))  # YAML includes JSON
    options = ["-p", "--config", str(home / "config.yaml"), "--auto"]
    return [*options, QUESTION], {"CONTINUE_TELEMETRY_ENABLED": "0"}


def gemini_cli(home: Path, url: str, key: str) -> tuple[list[str], dict[str, str]]:
    place = home / ".gemini"
    place.mkdir(parents=True, exist_ok=True)
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (place / "settings.json").write_text(json.dumps(settings))
    environment = {"GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": url}
    return ["-m", MODEL, "--skip-trust", "--yolo", "-p", QUESTION], environment


def copilot(home: Path, url: str, key: str) -> tuple[list[str], dict[str, str]]:
    provider = {"BASE_URL": f"{url}/v1", "API_KEY": key}
    environment = {f"COPILOT_PROVIDER_{name}": value for name, value in provider.items()}
    quiet = {"COPILOT_MODEL": MODEL, "COPILOT_OFFLINE": "true"}
    return ["-p", QUESTION, "--allow-all-tools"], environment | quiet


def note_as(*names: str) -> Callable[[Path], dict[str, Any]]:
    return lambda note: dict.fromkeys(names, str(note))


AGENTS = {
    "opencode": Agent("opencode-ai", "opencode", opencode, ("read", note_as("filePath"))),
    "qwen-code": Agent(
        "@qwen-code/qwen-code", "qwen", qwen_code, ("read_file", note_as("file_path"))
    ),
    "gemini-cli": Agent(
        "@google/gemini-cli", "gemini", gemini_cli, ("read_file", note_as("file_path"))
    ),
    "copilot": Agent("@github/copilot", "copilot", copilot, ("view", note_as("path"))),
    "pi": Agent("@earendil-works/pi-coding-agent", "pi", pi, ("read", note_as("path"))),
    "continue": Agent("@continuedev/cli", "cn", continue_cli, ("Read", note_as("filepath"))),
}


@pytest.fixture(scope="module")
def module_engine() -> FakeEngine:
    """Make an engine for agents' prompts of up to 80,000 bytes, each of which is one token."""
    return FakeEngine(msgspec.structs.replace(WELCOME, max_model_len=1_000_000))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine) -> Iterator[Served]:
    with serving_qwen(tmp_path_factory, module_engine) as gateway:
        yield gateway


def run(agent: Agent, home: Path, served: Served) -> str:
    """Run an agent; return what it prints."""
    program = node.package(agent.package).parents[len(Path(agent.package).parts) - 1]
    home.mkdir(exist_ok=True)
    (home / "note.txt").write_text(NOTE)
    options, environment = agent.asked(home, served.url, served.key)
    return node.run([str(program / ".bin" / agent.program), *options], home, environment)


def shown(request: Generate) -> str:
    """Return the text of a request's prompt."""
    return bytes(one for one in prompt_of(request) if one < 256).decode()


def longest(engine: FakeEngine) -> list[Generate]:
    """Return the agent's main requests, without its short requests for a title."""
    most = max(len(request.token_ids) for request in engine.requests)
    return [one for one in engine.requests if len(one.token_ids) > most / 2]


@pytest.mark.parametrize("name", AGENTS)
def test_it_reads_a_file_and_finds_its_prompt_in_the_cache(
    name: str, served: Served, engine: FakeEngine, tmp_path: Path
) -> None:
    agent, home = AGENTS[name], tmp_path / "home"
    tool, arguments = agent.call

    def script(request: Generate) -> list[int]:
        prompt = shown(request)
        is_to_read = f'"name": "{tool}"' in prompt and NOTE not in prompt
        call = written((tool, arguments(home / "note.txt")))
        return list(f"<think>\nso\n</think>\n\n{call if is_to_read else 'It rains.'}".encode())

    engine.script = script
    assert "It rains." in run(agent, home, served)
    first, second = longest(engine)
    assert NOTE in shown(second)
    assert NOTE not in shown(first)
    assert common(first, second) > SHARED * len(prompt_of(first))


def common(one: Generate, other: Generate) -> int:
    """Count the leading tokens that two prompts share."""
    pairs = zip(prompt_of(one), prompt_of(other), strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(prompt_of(one)))


def make_canonical(served: Served, *, is_on: bool) -> None:
    """Turn canonical prompts on or off for all tenants."""
    headers = {"authorization": f"Bearer {served.admin_key}"}
    with httpx.Client(base_url=served.url, headers=headers) as operator:
        for tenant in operator.get("/admin/tenants").json()["tenants"]:
            changed = {"canonical_prompts": is_on}
            operator.patch(f"/admin/tenants/{tenant['id']}", json=changed).raise_for_status()


@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize("name", ["opencode", "copilot"])
def test_two_directories_share_the_tools_where_prompts_are_canonical(
    served: Served, engine: FakeEngine, tmp_path: Path, name: str, canonical: bool
) -> None:
    engine.script = saying("It rains.")
    make_canonical(served, is_on=canonical)
    firsts = []
    for place in ("here", "there"):
        run(AGENTS[name], tmp_path / place, served)
        firsts.append(longest(engine)[-1])
    share = common(*firsts) / len(prompt_of(firsts[0]))
    assert (share > 0.98) == canonical
