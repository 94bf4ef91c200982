"""The OpenAPI description of all routes, made without a server."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from gateway.admin.routes import admin_router
from gateway.config import Bounds
from gateway.dialects.dialect import RouteParts
from gateway.http.app import build_app as build_web_app
from gateway.http.error_dialect import Dialects
from gateway.http.health import health_router
from gateway.startup.composition import DIALECTS
from gateway.telemetry.metrics import GatewayMetrics
from gateway.tenant_cache.routes import tenant_cache_router
from gateway.usage.routes import own_usage_router

_ABSENT: Any = None  # stands for a dependency that only an answer to a request needs


def description() -> dict[str, Any]:
    """Describe all routes in OpenAPI, as a gateway does at /openapi.json."""
    metrics = GatewayMetrics()
    nobody: Any = object  # stands for the function that identifies a caller, without parameters
    answering: Any = SimpleNamespace(admission=SimpleNamespace(tokenizer=None))
    card: Any = SimpleNamespace(name="", engine=_ABSENT)
    published: Any = SimpleNamespace(namespaces=_ABSENT)
    parts = RouteParts(answering, card, Bounds(), nobody, _ABSENT, _ABSENT, _ABSENT)
    routers = [
        *(dialect.router(parts) for dialect in DIALECTS),
        tenant_cache_router(parts),
        own_usage_router(_ABSENT, nobody, time.time, _ABSENT),
        admin_router(
            _ABSENT,
            _ABSENT,
            _ABSENT,
            metrics,
            nobody,
            published,
            _ABSENT,
            _ABSENT,
            _ABSENT,
            _ABSENT,
            _ABSENT,
            _ABSENT,
            _ABSENT,
        ),
        health_router(_ABSENT, lambda: None),
    ]
    return build_web_app(routers, metrics, Dialects(*DIALECTS)).openapi()
