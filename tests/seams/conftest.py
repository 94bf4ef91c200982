"""What the seam tests share: one server with the embedded model, one tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint
from tests.seams.support.mix import Alone, alone_on
from tests.seams.support.server import Server, running_server


@pytest.fixture(scope="package")  # no longer: a server that waits takes a hundredth of a core
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests that leave a server as they found it."""
    with running_server(tmp_path_factory.mktemp("ratoon") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A tiny random Qwen3; read only."""
    return make_checkpoint(RECIPES["qwen3"], tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def alone(checkpoint: Checkpoint) -> Alone:
    """Return a function that computes what a prompt gives by itself."""
    return alone_on(checkpoint.model_dir)
