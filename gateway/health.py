"""Health checks for load balancers and supervisors, without a key.

Knows: whether an engine is connected, and its process runs. Does not know: how it performs
(`/metrics`).
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from engine.interface import Engine
from gateway.openapi import described


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of both checks; `reason` is given when the status is not good.

    `status` of `/readyz`: "ready", "not_ready" without an engine, and "stalled" while the engine's
    process stands still: what runs in it goes on when it does.
    """

    status: str
    reason: str | None = None


def health_router(engine: Engine) -> APIRouter:
    """`/healthz`: 200 as long as the process answers. `/readyz`: 200 with an engine that runs."""
    router = APIRouter()

    @router.get("/healthz", openapi_extra=described(Health))
    async def healthz() -> Response:
        return _told(Health("ok"), 200)

    @router.get("/readyz", openapi_extra=described(Health, statuses=(200, 503)))
    async def readyz() -> Response:
        if engine.welcome is None:
            return _told(Health("not_ready", "no engine is connected"), 503)
        if engine.is_stalled:
            return _told(Health("stalled", "the engine does not answer"), 503)
        return _told(Health("ready"), 200)

    return router


def _told(health: Health, status: int) -> Response:
    return Response(msgspec.json.encode(health), status_code=status, media_type="application/json")
