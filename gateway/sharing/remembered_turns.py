"""Keeps the memory of generated turns clean: what is too old goes, and what no tenant may ask for.

Every worker of every gateway looks at the tenants itself, so a tenant that another one disabled or
deleted is forgotten here, too.

Knows: the state and the memory. Does not know: what a turn is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from gateway.errors import Unavailable
from gateway.periodic import repeated
from gateway.prompts.turn_memory import TurnMemory
from gateway.state.records import Tenant
from gateway.state.store import Records

REFRESH_S = 5.0


@asynccontextmanager
async def cleaned(
    memory: TurnMemory, store: Records, every_s: float = REFRESH_S
) -> AsyncIterator[None]:
    """Clean `memory` for as long as this is open."""
    async with repeated(partial(_clean_later, memory, store, every_s), "remembered-turns"):
        yield


async def _clean_later(memory: TurnMemory, store: Records, wait_s: float) -> None:
    await asyncio.sleep(wait_s)
    with suppress(Unavailable):
        await clean(memory, store)


async def clean(memory: TurnMemory, store: Records) -> None:
    """Clean it once; raises Unavailable."""
    memory.forget_old()
    remembered = memory.tenants()
    if not remembered:
        return
    live = {tenant.id for tenant in await store.every(Tenant) if not tenant.disabled}
    for tenant_id in remembered - live:
        memory.forget(tenant_id)
