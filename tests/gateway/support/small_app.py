"""A minimal application around a router, which also renders the gateway's errors."""

from __future__ import annotations

import httpx
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

from gateway.errors import GatewayError
from gateway.http.error_dialect import Dialects
from gateway.http.request_head import RequestHead
from gateway.startup.composition import DIALECTS


def small_app(*routers: APIRouter) -> FastAPI:
    app = FastAPI()
    app.add_middleware(RequestHead, Dialects(*DIALECTS))
    for router in routers:
        app.routes.extend(router.routes)  # adds the routes as `build_app` does

    @app.exception_handler(GatewayError)
    async def refused(request: Request, error: GatewayError) -> JSONResponse:
        shape = {
            "message": error.message,
            "type": "error",
            "param": error.param,
            "code": error.code,
        }
        return JSONResponse({"error": shape}, status_code=error.status)

    return app


def client_of(app: FastAPI, key: str | None = None) -> httpx.AsyncClient:
    """Make a client of `app` over ASGI, with `key` as its bearer token."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://ratoon", headers=headers
    )
