"""Claude Code reads a file, shows thoughts, follows a schema, and finds its prompt in the cache.

It runs from the command line with its own home directory.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.clients import node
from tests.clients.conftest import serving_qwen
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import written

Ask = Callable[..., list[dict[str, Any]]]
NAMES = ("MODEL", "SMALL_FAST_MODEL", "DEFAULT_HAIKU_MODEL")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}

RED = (  # a PNG of 8 by 8 red pixels
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEU"
    "lEQVR42mP4z8CAFTEMLQkAKP8/wc53yE8AAAAASUVORK5CYII="
)


@pytest.fixture(scope="module")
def module_engine() -> FakeEngine:
    """Make an engine for prompts of 80,000 bytes, each of which is one token."""
    return FakeEngine(msgspec.structs.replace(WELCOME, max_model_len=1_000_000))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine) -> Any:
    with serving_qwen(tmp_path_factory, module_engine) as gateway:
        yield gateway


@pytest.fixture
def ask(served: Served, engine: FakeEngine, tmp_path: Path) -> Ask:
    """Return a function that runs Claude Code on a question; it returns the printed lines, the last
    of which is the result.
    """
    program = node.package("@anthropic-ai/claude-code").parents[1] / ".bin" / "claude"
    environment = {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_API_KEY": served.key,
        **{f"ANTHROPIC_{name}": MODEL for name in NAMES},
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_TELEMETRY": "1",
    }

    def asked(prompt: str, *options: str) -> list[dict[str, Any]]:
        form = ("--output-format", "stream-json", "--verbose", "--include-partial-messages")
        command = [str(program), "-p", prompt, *form, *options]
        return [json.loads(one) for one in node.run(command, tmp_path, environment).splitlines()]

    return asked


def prompts(engine: FakeEngine) -> list[str]:
    """Return the texts of all prompts."""
    return [
        bytes(one for one in prompt_of(request) if one < 256).decode()
        for request in engine.requests
    ]


def test_it_shows_what_was_thought_and_said(ask: Ask, engine: FakeEngine) -> None:
    engine.script = saying("<think>\nso\n</think>\n\nHello.")
    lines = ask("Hi")
    assert (lines[-1]["subtype"], lines[-1]["result"]) == ("success", "Hello.")
    deltas = [
        line["event"]["delta"]
        for line in lines
        if line["type"] == "stream_event" and line["event"]["type"] == "content_block_delta"
    ]
    assert "".join(one.get("thinking", "") for one in deltas) == "so"
    assert "".join(one.get("text", "") for one in deltas) == "Hello."


def test_it_reads_a_file_and_finds_its_prompt_in_the_cache(
    ask: Ask, engine: FakeEngine, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("rain in Oslo")

    def script(request: Any) -> list[int]:
        read = len(engine.requests) == 1
        call = written(("Read", {"file_path": str(note)}))
        return list((call if read else "It rains.").encode())

    engine.script = script
    lines = ask("What does note.txt say?")
    assert lines[-1]["result"] == "It rains."
    first, second = prompts(engine)
    assert "rain in Oslo" not in first
    assert "rain in Oslo" in second
    assert lines[-1]["usage"]["cache_read_input_tokens"] > 0.9 * len(first)


def test_tools_that_it_searches_for_leave_the_prompt_before_them_in_the_cache(
    ask: Ask, engine: FakeEngine
) -> None:
    search = written(("ToolSearch", {"query": "select:NotebookEdit,WebFetch", "max_results": 5}))
    engine.script = lambda _: list((search if len(engine.requests) == 1 else "Found.").encode())
    assert ask("Find the tools.")[-1]["result"] == "Found."
    first, second = prompts(engine)
    assert '"name":"NotebookEdit"' in second[len(first) :]
    assert second.startswith(first)
    assert "DeferredToolPlaceholder" not in first


def test_it_goes_on_without_an_image_that_is_refused(
    ask: Ask, engine: FakeEngine, tmp_path: Path
) -> None:
    image = tmp_path / "red.png"
    image.write_bytes(base64.b64decode(RED))

    def script(request: Any) -> list[int]:
        read = len(engine.requests) == 1
        call = written(("Read", {"file_path": str(image)}))
        return list((call if read else "I cannot see it.").encode())

    engine.script = script
    assert ask("What does red.png show?")[-1]["result"] == "I cannot see it."
    assert "Image removed" in prompts(engine)[-1]


def test_another_session_finds_the_instructions_in_the_cache(ask: Ask, engine: FakeEngine) -> None:
    engine.script = saying("Hello.")
    ask("Hi")
    usage = ask("What is the weather like?")[-1]["usage"]
    # In the prompt, the question comes before the working directory and the tools' further
    # instructions.
    assert usage["cache_read_input_tokens"] > 0.99 * prompts(engine)[0].index("Hi<|im_end|>")


def test_an_answer_of_a_schema(ask: Ask, engine: FakeEngine) -> None:
    def script(request: Any) -> list[int]:
        called = written(("StructuredOutput", {"city": "Oslo"}))
        return list((called if len(engine.requests) == 1 else "Done.").encode())

    engine.script = script
    done = ask("Where?", "--json-schema", json.dumps(CITY))[-1]
    assert done["structured_output"] == {"city": "Oslo"}


def test_an_effort(ask: Ask, engine: FakeEngine) -> None:
    engine.script = saying("Hello.")
    assert ask("Hi", "--effort", "max")[-1]["result"] == "Hello."
