from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def socket_path() -> Iterator[str]:
    """A path short enough for a Unix socket, in a directory that is not there yet."""
    with tempfile.TemporaryDirectory(prefix="ratoon") as directory:
        yield str(Path(directory, "run", "engine.sock"))
