"""Fixtures of several test modules of the engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.doubles.kernels.interpreter import prepared_once  # noqa: F401 (a fixture)
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint

MakeCheckpoint = Callable[[str], Checkpoint]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """Make the checkpoint of a recipe once. It must not be changed."""
    torch.set_num_threads(1)
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            model_dir: Path = tmp_path_factory.mktemp(name)
            made[name] = make_checkpoint(RECIPES[name], model_dir)
        return made[name]

    return get


@pytest.fixture
def socket_path() -> Iterator[str]:
    """Return a path that is short enough for a Unix socket; its directory does not exist yet."""
    with tempfile.TemporaryDirectory(prefix="ratoon") as directory:
        yield str(Path(directory, "run", "engine.sock"))


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Reset torch's sync debug mode after a test that sets it to "error"."""
    yield
    torch.cuda.set_sync_debug_mode(0)
