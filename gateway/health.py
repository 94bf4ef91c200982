"""Is the process alive, can it serve: for load balancers and supervisors, without a key.

Knows: whether an engine is connected. Does not know: how it fares; `/metrics` tells that.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from engine.client import Engine


def health_router(engine: Engine) -> APIRouter:
    """`/healthz`: 200 as long as the process answers. `/readyz`: 200 with an engine, else 503."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @router.get("/readyz")
    async def readyz() -> JSONResponse:
        if engine.welcome is None:
            return JSONResponse(
                {"status": "not_ready", "reason": "no engine is connected"}, status_code=503
            )
        return JSONResponse({"status": "ready"})

    return router
