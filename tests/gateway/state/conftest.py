"""Fixtures of the tests of the state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doubles.gateway.redis_server import RedisServer, redis_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a Redis server for a module whose tests leave it usable."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server
