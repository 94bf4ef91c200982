"""What all tests of the command line share."""

import os
from pathlib import Path

import pytest

from tests.cli.console import Console


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No RATOON_* variable of whoever runs the tests reaches them; help is wide and plain."""
    for name in list(os.environ):
        if name.startswith("RATOON_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A shell prompt in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return Console()


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory that looks like a model."""
    directory = tmp_path / "tiny-model"
    directory.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    return directory
