"""The gateway of these tests serves a model with Qwen3's template, of single bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.engine.tiny_model import write_tiny_model

TEMPLATES = Path(__file__).parents[3] / "templates"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of the model of all other tests of the gateway."""
    template = (TEMPLATES / "qwen3.jinja").read_text()
    return write_tiny_model(tmp_path_factory.mktemp("models") / "qwen", template=template)
