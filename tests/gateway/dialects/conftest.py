"""Fixtures: the two kinds of store in which dialects keep conversations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doubles.gateway.redis_server import RedisServer, redis_server


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def redis(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer | None]:
    """Return the Redis that stores the state, or None if a file stores it."""
    if request.param == "sqlite":
        yield None
        return
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server
