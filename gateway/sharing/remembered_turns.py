"""The removal of old values, and of deleted tenants' values, from tenants' memories.

Every worker of every gateway reads the tenants itself, and so forgets tenants that another worker
has disabled or deleted.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

from gateway.errors import Unavailable
from gateway.processes.periodic import repeated
from gateway.state.records import Tenant
from gateway.state.store import Records
from gateway.tenant_memory import Sized, TenantMemory

REFRESH_S = 5.0
T = TypeVar("T", bound=Sized)


@asynccontextmanager
async def cleaned(memory: TenantMemory[T], store: Records) -> AsyncIterator[None]:
    """Clean `memory` regularly while this context is open."""
    async with repeated(partial(_clean_later, memory, store), "tenant-memory"):
        yield


async def _clean_later(memory: TenantMemory[T], store: Records) -> None:
    await asyncio.sleep(REFRESH_S)
    with suppress(Unavailable):
        await clean(memory, store)


async def clean(memory: TenantMemory[T], store: Records) -> None:
    """Clean `memory` once; raise Unavailable."""
    memory.forget_old()
    remembered = memory.tenants()
    if not remembered:
        return
    live = {tenant.id for tenant in await store.every(Tenant) if not tenant.disabled}
    for tenant_id in remembered - live:
        memory.forget(tenant_id)
