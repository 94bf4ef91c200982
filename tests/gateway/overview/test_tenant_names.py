from __future__ import annotations

import pytest

from gateway.overview.tenant_names import RENEW_S, RETRY_S, TenantNames
from gateway.state.records import PUBLISHED, Tenant
from gateway.state.store import R
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock


class CountingStore(MemoryStore):
    """A store that counts how often all records were read."""

    reads = 0

    async def every(self, kind: type[R]) -> list[R]:
        self.reads += kind is Tenant
        return await super().every(kind)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


async def test_names_are_read_once_for_a_while(store: CountingStore) -> None:
    clock = ManualClock()
    names = TenantNames(store, clock)
    await store.create(Tenant(id="tn_a", name="acme", created_at=0.0))
    assert await names.known(["tn_a"]) == {"tn_a": "acme", PUBLISHED: "(published prefixes)"}
    await names.known(["tn_a", PUBLISHED])
    assert store.reads == 1
    clock.advance(RENEW_S + 1)
    await names.known(["tn_a"])
    assert store.reads == 2


async def test_who_is_unknown_is_looked_up_but_not_each_time(store: CountingStore) -> None:
    clock = ManualClock()
    names = TenantNames(store, clock)
    await names.known([])
    await store.create(Tenant(id="tn_b", name="bell", created_at=0.0))
    assert "tn_b" not in await names.known(["tn_b"])
    clock.advance(RETRY_S + 0.1)
    assert (await names.known(["tn_b"]))["tn_b"] == "bell"
    assert store.reads == 2
