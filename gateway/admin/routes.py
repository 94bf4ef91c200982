"""All routes of the operator behind one guard.

Knows: which routers there are, and that every one of them asks for the operator's key.
Does not know: which port they are served on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import APIRouter, Depends, Response

from engine.errors import EngineError
from engine.interface import Engine
from engine.stats_messages import EngineStats
from gateway.admin.audit import AuditTrail, audit_router
from gateway.admin.bounded_engine import BoundedEngine
from gateway.admin.cache import cache_router
from gateway.admin.groups import groups_router
from gateway.admin.keys import keys_router
from gateway.admin.prefixes import Publishing, prefixes_router
from gateway.admin.tenants import tenants_router
from gateway.admin.usage import usage_router
from gateway.auth import AdminAuthenticator
from gateway.keyring import Keyring
from gateway.metrics import GatewayMetrics
from gateway.openapi import described_text
from gateway.published import Published
from gateway.state.store import Store


def admin_router(
    store: Store,
    keyring: Keyring,
    engine: Engine,
    metrics: GatewayMetrics,
    admin_auth: AdminAuthenticator,
    published: Published,
    *,
    open_metrics: bool = False,
    clock: Callable[[], float] = time.time,
) -> APIRouter:
    """The admin routes and `/metrics`.

    `open_metrics` leaves `/metrics` without a key, for a bind that tenants cannot reach.
    """
    bounded = BoundedEngine(engine)
    guarded = [Depends(admin_auth)]
    router = APIRouter()
    audit = AuditTrail(store, clock)
    for part in (
        tenants_router(store, keyring, bounded, audit, clock),
        keys_router(store, keyring, audit, clock),
        groups_router(store, audit, clock),
        prefixes_router(Publishing(store, published, bounded, audit), store, clock),
        cache_router(store, bounded, audit, clock),
        usage_router(store, clock),
        audit_router(store),
    ):
        router.include_router(part, dependencies=guarded)
    router.include_router(
        _metrics_router(bounded, metrics), dependencies=[] if open_metrics else guarded
    )
    return router


def _metrics_router(engine: BoundedEngine, metrics: GatewayMetrics) -> APIRouter:
    router = APIRouter()

    @router.get(
        "/metrics",
        response_class=Response,
        openapi_extra=described_text(metrics.content_type),
    )
    async def show() -> Response:
        return Response(
            metrics.render(await _stats_if_any(engine)), media_type=metrics.content_type
        )

    return router


async def _stats_if_any(engine: BoundedEngine) -> EngineStats | None:
    """The engine's counters; None, shown as `ratoon_engine_up 0`, while it does not answer."""
    try:
        return await engine.stats()
    except EngineError:
        return None
