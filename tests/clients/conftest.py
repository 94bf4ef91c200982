"""A gateway with a fake engine whose model writes Hermes calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, Script, prompt_of
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.dialects.openai.calling.hermes import written

TEMPLATE = Path(__file__).parents[1] / "gateway" / "templates" / "qwen3.jinja"
OSLO: dict[str, Any] = {"city": "Oslo", "days": 2}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # ignores frameworks' deprecation warnings, which do not concern these tests
        if "clients" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("default"))


@contextmanager
def serving_qwen(
    places: pytest.TempPathFactory, engine: FakeEngine, name: str = MODEL
) -> Iterator[Served]:
    """Run a gateway with `engine`, Qwen3's template and a byte tokenizer."""
    model = write_tiny_model(places.mktemp("models") / "qwen", TEMPLATE.read_text())
    config = structs.replace(config_of(model, places.mktemp("data")), model_name=name)
    with serving(config, engine) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def module_engine() -> FakeEngine:
    """Make an engine for agents' long prompts, in which each byte is one token."""
    return FakeEngine(structs.replace(WELCOME, max_model_len=1_000_000))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine) -> Iterator[Served]:
    with serving_qwen(tmp_path_factory, module_engine) as gateway:
        yield gateway


@pytest.fixture
def engine(module_engine: FakeEngine) -> FakeEngine:
    module_engine.reset()
    return module_engine


@pytest.fixture
def url(served: Served) -> str:
    return f"{served.url}/v1"


def agent(tool: str, then: str) -> Script:
    """Return a script that calls `tool` with `OSLO`, and answers `then` after the result."""

    def script(request: Any) -> list[int]:
        has_result = "<tool_response>\nrain" in bytes(prompt_of(request)).decode()
        return list((then if has_result else written((tool, OSLO))).encode())

    return script


def answer() -> str:
    """Return an answer that is valid under the tests' schema."""
    return json.dumps(OSLO)
