from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.gateway.limits.homes import Home, memory_home, redis_home, sqlite_home


@pytest.fixture(scope="package")
def limits_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("limits-redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def home(
    request: pytest.FixtureRequest, tmp_path: Path, limits_redis: RedisServer
) -> AsyncIterator[Home]:
    with ExitStack() as stack:
        if request.param == "memory":
            home = memory_home()
        elif request.param == "sqlite":
            home = sqlite_home(tmp_path)
        else:
            home = stack.enter_context(redis_home(limits_redis))
        yield home
        await home.limiter.close()
        await home.sibling.close()
