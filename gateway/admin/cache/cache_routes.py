"""`/admin/cache`: the prefix cache's statistics, its latest evictions, and its flush."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Response

from engine.link.interface import Engine
from engine.link.query_messages import StatsQuery
from gateway.admin.audit import AuditTrail
from gateway.admin.cache.cache_stats import cache_stats, eviction
from gateway.admin.cache.cache_views import CacheStats, EvictionList
from gateway.errors import Unavailable, refusing
from gateway.http.admin_json import AdminBody, json_response, sent
from gateway.http.openapi import described
from gateway.sharing.flushing import Flushing
from gateway.state.records import PUBLISHED, Tenant
from gateway.state.store import Store
from gateway.tenant_memory import TenantMemory

MAX_EVICTIONS = 1000


class FlushOrder(AdminBody):
    """Body of POST /admin/cache/flush: the tenant to flush, or by default all tenants."""

    tenant: str | None = None


class FlushDone(msgspec.Struct, frozen=True):
    """Answer of POST /admin/cache/flush.

    `awaited` names engines that flush later, before they serve anything. `flushed_blocks` counts
    the other engines' blocks. The count is None if no engine answered.
    """

    flushed_blocks: int | None
    awaited: list[str]


def cache_router(
    store: Store,
    engine: Engine,
    flushing: Flushing,
    audit: AuditTrail,
    memories: Sequence[TenantMemory[Any]],
    clock: Callable[[], float],
) -> APIRouter:
    """Serve the routes below `/admin/cache`. `admin_router` guards the routes.

    A flush also empties the `memories` of this worker. Other workers keep their memories for
    minutes. This is harmless, since memories hold only tokens, and the tokens' blocks are flushed.
    """
    router = APIRouter(prefix="/admin/cache")

    @router.get("/stats", openapi_extra=described(CacheStats))
    async def stats() -> Response:
        with refusing():
            counted = (await engine.ask(StatsQuery())).stats
        answers = engine.router_answers
        names = await _names(store)
        return json_response(cache_stats(counted, names, engine.replicas, router_answers=answers))

    @router.get("/evictions", openapi_extra=described(EvictionList))
    async def evictions() -> Response:
        with refusing():
            counted = (await engine.ask(StatsQuery(evictions=MAX_EVICTIONS))).stats
        now = clock()
        return json_response(EvictionList([eviction(one, now) for one in counted.evictions]))

    @router.post("/flush", openapi_extra=described(FlushDone, FlushOrder))
    async def flush(order: Annotated[FlushOrder, Depends(sent(FlushOrder))]) -> Response:
        if order.tenant is not None:
            await store.get(Tenant, order.tenant)
        with refusing():
            flushed = await flushing.flush(order.tenant)
        for memory in memories:
            if order.tenant is None:
                memory.forget_all()
            else:
                memory.forget(order.tenant)
        target, awaited = order.tenant or "everything", list(flushed.awaited)
        await audit.note("cache.flush", target, blocks=flushed.blocks, awaited=awaited)
        return json_response(FlushDone(flushed.blocks, awaited))

    return router


async def _names(store: Store) -> dict[str, str]:
    try:
        tenants = await store.every(Tenant)
    except Unavailable:
        tenants = []
    return {tenant.id: tenant.name for tenant in tenants} | {PUBLISHED: "(published prefixes)"}
