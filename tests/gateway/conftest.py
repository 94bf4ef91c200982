"""Fixtures: a gateway with a fake engine, which the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from gateway.config import Bounds
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import Served, config_of, serving
from tests.doubles.gateway.templates_once import templates_once  # noqa: F401 (a fixture)
from tests.gateway.support.traced import Traced

BOUNDS = Bounds(max_body_bytes=1 << 20, max_streams_per_tenant=64)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def module_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def served(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    config = config_of(tiny_model, tmp_path_factory.mktemp("data"), bounds=BOUNDS)
    with serving(config, module_engine) as gateway:
        yield gateway


@pytest.fixture
def engine(module_engine: FakeEngine) -> Iterator[FakeEngine]:
    """Return the engine behind the served gateway; afterwards check that no request runs."""
    module_engine.reset()
    module_engine.welcome = WELCOME
    yield module_engine
    assert module_engine.wait_until(lambda engine: engine.running == 0)


@pytest.fixture
def client(served: Served, engine: FakeEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key=served.key, max_retries=0, timeout=60
    ) as client:
        yield client


@pytest.fixture
def traced(tiny_model: Path, tmp_path: Path) -> Traced:
    """Run a gateway with tracing, and with an engine and a data directory of its own."""
    return Traced(tiny_model, tmp_path / "data")
