"""The contract on a real server, and what only Redis can do to us."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.state.redis_link import RedisLink, connect
from gateway.state.redis_store import RedisStore
from tests.doubles.redis_server import RedisServer
from tests.gateway.state.contract import StoreContract

PATIENT_S = 10.0


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    client = connect(server.url)
    await client.flushall()
    store = RedisStore(RedisLink(client, timeout_s=PATIENT_S))
    yield store
    await store.close()


class TestRedisStore(StoreContract):
    """The contract, on a real server."""
