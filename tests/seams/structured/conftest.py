"""Fixtures: a server with a tiny random model, which needs a grammar to write Hermes calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.seams.support.server import Server, running_server

TEMPLATE = Path(__file__).parents[2] / "gateway" / "templates" / "hermes.jinja"
SETTINGS = {
    "RATOON_CACHE_TOKENS": "16384",
    "RATOON_MAX_MODEL_LEN": "2048",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
    "RATOON_DEVICE": "cpu",
    "RATOON_HOST_CACHE_TOKENS": "0",
    "RATOON_DISK_CACHE_GIB": "0",
}


@pytest.fixture(scope="package")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("structured")
    model = write_tiny_model(directory / "tiny", TEMPLATE.read_text(), RUNNABLE)
    settings = SETTINGS | {"RATOON_MODEL": str(model)}
    with running_server(directory / "data", settings) as running:
        yield running


@pytest.fixture
def client(tiny_server: Server) -> Iterator[openai.OpenAI]:
    with tiny_server.openai() as client:
        yield client


@pytest.fixture(scope="session")
def jsonschema() -> Any:
    """Import the library, which takes most of a second, for tests that validate with it."""
    return pytest.importorskip("jsonschema")
