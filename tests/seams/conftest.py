"""Fixtures of these tests: one server with the embedded model, and one tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint
from tests.seams.support.mix import Alone, alone_on
from tests.seams.support.server import Server, running_server


# not "session", since an idle server still uses a hundredth of a core
@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server for tests that leave it unchanged."""
    with running_server(tmp_path_factory.mktemp("ratoon") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Make a tiny random Qwen3, which tests must not change."""
    return make_checkpoint(RECIPES["qwen3"], tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def alone(checkpoint: Checkpoint) -> Alone:
    """Return a function that computes the answer of a request that runs alone."""
    return alone_on(checkpoint.model_dir)
