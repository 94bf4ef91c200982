"""Fixtures: Google's client, and a gateway whose model thinks and writes Hermes tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from google import genai

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import Served
from tests.gateway.dialects.anthropic.conftest import TEMPLATE


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "agent", template=TEMPLATE)


@pytest.fixture(scope="module")
def client_of_module(served: Served) -> Iterator[genai.Client]:
    """Make the official client as users do, but once: it reads its certificates twice."""
    client = genai.Client(api_key=served.key, http_options={"base_url": served.url})
    yield client
    client.close()


@pytest.fixture
def gemini(client_of_module: genai.Client, engine: FakeEngine) -> genai.Client:
    """Return the official client."""
    return client_of_module


@pytest.fixture
def http(served: Served, engine: FakeEngine) -> Iterator[httpx.Client]:
    """Return an HTTP client for requests and answers that the official client cannot send or
    show.
    """
    headers = {"x-goog-api-key": served.key}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client
