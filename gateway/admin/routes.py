"""The operator's routes behind one guard, which asks for the operator's key."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from engine.errors import EngineError
from engine.link.interface import Engine
from engine.link.query_messages import StatsQuery
from engine.link.stats.engine_stats import EngineStats
from gateway.admin.audit import AuditTrail, audit_router
from gateway.admin.cache.cache_routes import cache_router
from gateway.admin.engines import engines_router
from gateway.admin.isolation import isolation_router
from gateway.admin.prefixes.carried_in import CarriedIn
from gateway.admin.prefixes.carried_out import CarriedOut
from gateway.admin.prefixes.carried_routes import carried_router
from gateway.admin.prefixes.prefix_routes import Publishing, prefixes_router
from gateway.admin.tenants.adapters import adapters_router
from gateway.admin.tenants.keys import keys_router
from gateway.admin.tenants.receipts import receipts_router
from gateway.admin.tenants.tenant_routes import groups_router, tenants_router
from gateway.auth.auth import AdminAuthenticator, MetricsAuthenticator
from gateway.auth.keyring import Keyring
from gateway.http.body_memory import OPERATOR, BodyMemory
from gateway.http.openapi import described
from gateway.overview.routes import Watched, overview_router
from gateway.overview.tenant_names import TenantNames
from gateway.overview.tree_routes import tree_router
from gateway.overview.tree_rows import TreeRows
from gateway.receipts.erasing import Erasing
from gateway.sharing.adapters import TenantAdapters
from gateway.sharing.flushing import Flushing
from gateway.sharing.partitions import Partitions
from gateway.sharing.published import Published
from gateway.state.store import Store
from gateway.telemetry.metrics import GatewayMetrics
from gateway.tenant_memory import TenantMemory
from gateway.usage.routes import usage_router


def admin_router(
    store: Store,
    keyring: Keyring,
    engine: Engine,
    metrics: GatewayMetrics,
    admin_auth: AdminAuthenticator,
    published: Published,
    bodies: BodyMemory,
    partitions: Partitions,
    flushing: Flushing,
    erasing: Erasing,
    memories: Sequence[TenantMemory[Any]],
    watched: Watched,
    adapters: TenantAdapters,
    *,
    metrics_auth: MetricsAuthenticator | None = None,
    open_metrics: bool = False,
    finds_engines: bool = False,
    clock: Callable[[], float] = time.time,
) -> APIRouter:
    """Serve the admin routes and `/metrics`.

    `metrics_auth` admits readers of `/metrics` other than the operator. `open_metrics` serves
    `/metrics` without a key, on an address that tenants cannot reach. With `finds_engines` the
    gateway uses the engines registered in the state.
    """
    guarded = [Depends(admin_auth), Depends(_with_room(bodies))]
    router = APIRouter()
    audit = AuditTrail(store, clock)
    names = TenantNames(store, clock)
    publishing = Publishing(store, published, engine, audit)
    for part in (
        tenants_router(store, keyring, flushing, erasing, audit, partitions, clock),
        keys_router(store, keyring, audit, clock),
        adapters_router(store, adapters, audit),
        groups_router(store, audit, clock),
        prefixes_router(publishing, store, clock),
        carried_router(
            CarriedOut(store, published, engine, erasing, audit),
            CarriedIn(store, published, engine, publishing, audit),
            clock,
        ),
        engines_router(store, engine, audit, clock, finds=finds_engines),
        cache_router(store, engine, flushing, audit, memories, clock),
        overview_router(watched, engine, names, store, clock),
        isolation_router(store, audit, clock),
        tree_router(engine, TreeRows(published, names)),
        usage_router(store, clock),
        audit_router(store),
        receipts_router(erasing, audit),
    ):
        router.include_router(part, dependencies=guarded)
    scraping = [Depends(metrics_auth or admin_auth)]
    router.include_router(
        _metrics_router(engine, metrics), dependencies=[] if open_metrics else scraping
    )
    return router


def _with_room(bodies: BodyMemory) -> Callable[[Request], AsyncIterator[None]]:
    async def room(request: Request) -> AsyncIterator[None]:
        with bodies.lease(OPERATOR) as lease:
            request.state.body = lease
            yield

    return room


def _metrics_router(engine: Engine, metrics: GatewayMetrics) -> APIRouter:
    router = APIRouter()

    @router.get(
        "/metrics",
        response_class=Response,
        openapi_extra=described(None, texts=[metrics.content_type]),
    )
    async def show() -> Response:
        shown = metrics.render(await _stats_if_any(engine), engine.replicas)
        return Response(shown, media_type=metrics.content_type)

    return router


async def _stats_if_any(engine: Engine) -> EngineStats | None:
    try:
        return (await engine.ask(StatsQuery())).stats
    except EngineError:
        return None
