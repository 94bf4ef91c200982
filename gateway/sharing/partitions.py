"""The tenants' partitions of the cache, sent to the engine whenever the tenants change.

With `partitioned` each tenant that is not disabled has a part of every tier for itself, by its
quota and weight, so that no tenant's hits depend on the requests of others. Only the operator
changes the parts: tenants made, disabled and deleted, quotas and weights. A single tenant needs no
partition; nor do tenants that share all prompts, or whose operator wants a pool.

Every gateway, and each of its workers, sends the engine the same, from the same records; how a
tier is divided the engine decides (`prefix_cache.quotas.shares`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from engine.errors import EngineError
from engine.link.interface import Engine
from engine.link.messages import FlowQuota
from gateway.errors import Unavailable
from gateway.periodic import repeated
from gateway.state.records import Tenant
from gateway.state.store import Records

REFRESH_S = 2.0  # after which a change made by another worker is noticed


class Partitions:
    """The division of one engine's cache. For one event loop."""

    def __init__(self, store: Records, engine: Engine, *, are_wanted: bool) -> None:
        self._store = store
        self._engine = engine
        self._are_wanted = are_wanted
        self._news = asyncio.Event()
        self._told: dict[str, FlowQuota] | None = None

    def forget(self, changed_id: str) -> None:
        """A tenant may have changed."""
        del changed_id
        self.reload()

    def reload(self) -> None:
        """Look at the tenants again, soon."""
        self._news.set()

    async def renew(self) -> None:
        """Look at the tenants now; raises Unavailable."""
        flows = divided(await self._store.every(Tenant)) if self._are_wanted else {}
        if flows != self._told:
            self._engine.partition(flows)
            self._told = flows

    async def changed(self) -> None:
        """Look at the tenants now or, if that fails, soon: the change itself has been made."""
        try:
            await self.renew()
        except (Unavailable, EngineError):
            self.reload()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the engine's division up to date for as long as this is open."""
        with suppress(Unavailable):
            await self.renew()
        async with repeated(self._keep, "partitions"):
            yield

    async def _keep(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_S):
                await self._news.wait()
        self._news.clear()
        with suppress(Unavailable, EngineError):
            await self.renew()


def divided(tenants: Iterable[Tenant]) -> dict[str, FlowQuota]:
    """The quotas of the tenants that may ask; none where there is no second one."""
    flows = {
        tenant.id: FlowQuota(tenant.cache.floor, tenant.cache.ceiling, tenant.weight)
        for tenant in tenants
        if not tenant.disabled
    }
    return flows if len(flows) > 1 else {}
