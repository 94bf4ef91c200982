"""The contract on a real server, and what only Redis can do to us."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.state.redis_link import RedisLink, connect
from gateway.state.redis_store import RedisStore
from tests.doubles.redis_server import RedisServer, redis_server
from tests.gateway.state.contract import StoreContract

PATIENT_S = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    client = connect(server.url, timeout_s=PATIENT_S)
    await client.flushall()
    store = RedisStore(RedisLink(client))
    yield store
    await store.close()


class TestRedisStore(StoreContract):
    """The contract, on a real server."""
