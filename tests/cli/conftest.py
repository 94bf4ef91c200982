"""Fixtures of all tests of the command line."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import Console, Printed, Ratoon
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import Served, config_of, serving


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the caller's RATOON_* variables; make help pages wide and without colours."""
    for name in list(os.environ):
        if name.startswith("RATOON_") or name == "DATA_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Return a console in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return Console()


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Make a directory that looks like a model's."""
    directory = tmp_path / "tiny-model"
    directory.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    return directory


@pytest.fixture(scope="session")
def engine() -> FakeEngine:
    """Return a fake engine, for the gateway."""
    return FakeEngine()


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: FakeEngine) -> Iterator[Served]:
    """Run a real gateway with a fake engine."""
    config = config_of(
        write_tiny_model(tmp_path_factory.mktemp("models") / "tiny"),
        tmp_path_factory.mktemp("data"),
    )
    with serving(config, engine) as served:
        yield served


@pytest.fixture
def ratoon(console: Console, gateway: Served) -> Ratoon:
    """Return a function that runs a command against the running server."""

    def type_words(line: str, answer: str = "") -> Printed:
        env = {"RATOON_URL": gateway.url, "RATOON_ADMIN_KEY": gateway.admin_key}
        return console.type(*line.split(), env=env, answer=answer)

    return type_words
