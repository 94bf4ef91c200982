"""Fixtures: a gateway that serves a byte-level model with Qwen3's template."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.engine.tiny_model import write_tiny_model

TEMPLATES = Path(__file__).parents[3] / "templates"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a byte-level model with Qwen3's template, which replaces the model of the gateway's
    other tests.
    """
    template = (TEMPLATES / "qwen3.jinja").read_text()
    return write_tiny_model(tmp_path_factory.mktemp("models") / "qwen", template=template)
