"""A real Redis fulfils the contract of stores, also with faults that only Redis has."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.state.redis import keys as at
from gateway.state.redis.link import RedisLink, connect
from gateway.state.redis.store import RedisStore
from gateway.state.usage_records import Counters
from tests.doubles.gateway.redis_server import RedisServer
from tests.gateway.state.contract import StoreContract, a_row

PATIENT_S = 10.0


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    client = connect(server.url)
    await client.flushall()
    store = RedisStore(RedisLink(client, timeout_s=PATIENT_S))
    yield store
    await store.close()


class TestRedisStore(StoreContract):
    """The contract of stores, on a real Redis server."""


async def test_usage_from_before_a_counter_has_none_of_it(
    store: RedisStore, server: RedisServer
) -> None:
    await store.add_usage([a_row(requests=3, cached_tokens=5)], batch="1")
    client = connect(server.url)
    place = at.usage_of("2026-01-31", "tn_a")
    fields = [f"key_1:{name}" for name in ("cache_written_tokens", "cache_read_tokens")]
    assert await client.hdel(place, *fields) == 2  # the record as an older release stored it
    await client.aclose()
    before = Counters(requests=3, cached_tokens=5)
    assert [row.counters for row in await store.usage("2026-01-01", "2026-12-31")] == [before]
    await store.add_usage([a_row(cache_written_tokens=64, cache_read_tokens=16)], batch="2")
    [row] = await store.usage("2026-01-01", "2026-12-31")
    assert row.counters == before.plus(Counters(cache_written_tokens=64, cache_read_tokens=16))
