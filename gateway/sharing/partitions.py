"""The tenants' shares of the cache, sent to the engine whenever the tenants change.

With `partitioned` each enabled tenant has its own part of every tier of the cache, by its quota and
weight. No tenant's hits then depend on the requests of others. Only the operator changes the parts:
by making, disabling or deleting tenants, by quotas and weights. A single tenant needs no partition.
Neither do tenants that share all prompts, or whose operator wants a common pool.

Every gateway, and each of its workers, sends the engine the same quotas, made from the same
records. The engine decides how a tier is divided (`prefix_cache.eviction.shares`).
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from engine.link.interface import Engine
from engine.link.messages import FlowQuota
from gateway.errors import Unavailable
from gateway.processes.periodic import repeated
from gateway.sharing.renewed import Renewed
from gateway.state.records import Tenant
from gateway.state.store import Records


class Partitions(Renewed):
    """The division of one engine's cache among tenants. Used in one event loop."""

    def __init__(self, store: Records, engine: Engine, *, are_wanted: bool) -> None:
        super().__init__()
        self._store = store
        self._engine = engine
        self._are_wanted = are_wanted
        self._told: dict[str, FlowQuota] | None = None

    async def renew(self) -> None:
        """Read the tenants now and send the engine their quotas; raise Unavailable."""
        flows = divided(await self._store.every(Tenant)) if self._are_wanted else {}
        if flows != self._told:
            self._engine.partition(flows)
            self._told = flows

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the engine's quotas up to date while this context is open."""
        with suppress(Unavailable):
            await self.renew()
        async with repeated(self.renew_when_due, "partitions"):
            yield


def divided(tenants: Iterable[Tenant]) -> dict[str, FlowQuota]:
    """Compute the quotas of the enabled tenants; none if there is only one tenant."""
    flows = {
        tenant.id: FlowQuota(
            tenant.cache.floor,
            tenant.cache.ceiling,
            tenant.weight,
            tenant.limits.max_request_tokens or 0,
        )
        for tenant in tenants
        if not tenant.disabled
    }
    return flows if len(flows) > 1 else {}
