"""A tenant that loads many adapters waits for its own loads, and other tenants do not wait."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from engine.link.interface import Engine
from engine.link.query_messages import AdapterRead, ReadAdapter
from gateway.errors import TooManyRequests
from gateway.sharing.adapters import MOST_WAITING, TenantAdapters
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.state.records import Tenant
from gateway.tenant_adapters import MOST_ADAPTERS
from tests.gateway.replicas.rig import until
from tests.gateway.state.memory_store import MemoryStore


class AdapterReaderThatWaits:
    """An engine whose reading of each adapter waits until a test releases it."""

    def __init__(self) -> None:
        self.reading: list[str] = []
        self.goes_on = asyncio.Event()

    async def ask(self, query: ReadAdapter, timeout_s: float) -> AdapterRead:
        del timeout_s
        self.reading.append(query.path)
        await self.goes_on.wait()
        digest = query.path.encode().ljust(32)
        return AdapterRead(query_id=query.query_id, digest=digest, rank=1, num_bytes=1)


async def test_one_adapter_of_a_tenant_is_read_at_a_time_and_few_wait() -> None:
    store, engine = MemoryStore(), AdapterReaderThatWaits()
    for tenant_id in ("tn_many", "tn_one"):
        tenant = Tenant(
            id=tenant_id, name=tenant_id, created_at=0.0, max_own_adapters=MOST_ADAPTERS
        )
        await store.create(tenant)
    namespaces = Namespaces(b"s" * 32, share_all=False, published=PublishedIndex())
    adapters = TenantAdapters(
        store, cast(Engine, engine), namespaces, lambda _: None, "tiny", lambda: 0.0
    )
    many = [
        asyncio.create_task(adapters.load_own("tn_many", f"a{number}", "a"))
        for number in range(1 + MOST_WAITING)
    ]
    await until(lambda: bool(engine.reading))
    with pytest.raises(TooManyRequests):
        await adapters.load_own("tn_many", "b", "b")
    one = asyncio.create_task(adapters.load_own("tn_one", "c", "c"))
    await until(lambda: len(engine.reading) == 2)
    assert engine.reading == ["tn_many/a", "tn_one/c"]
    engine.goes_on.set()
    await asyncio.gather(*many, one)
    assert len((await store.get(Tenant, "tn_many")).adapters) == 1 + MOST_WAITING, "the control"
