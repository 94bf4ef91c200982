"""The web application: its routers, and one shape for every error.

Knows: what is answered to each kind of exception. Does not know: how the routers are made
(`main.py`) or how bytes come in (`connection.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp

from engine.errors import EngineError
from gateway.disconnect import ClientGone
from gateway.errors import BadRequest, GatewayError, from_engine
from gateway.metrics import GatewayMetrics
from gateway.openai.errors import error_response, from_http, internal_error_response
from gateway.openapi import complete
from gateway.request_head import RequestHead, request_id_of
from gateway.shutdown_reply import ShutdownReply

_LOG = logging.getLogger(__name__)
_CLIENT_CLOSED = 499  # nginx's status for a client that has gone: nobody reads it


class GatewayApp(FastAPI):
    """FastAPI without docs pages and redirects, and with an id for every request."""

    def __init__(self) -> None:
        super().__init__(
            title="Ratoon",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )

    def build_middleware_stack(self) -> ASGIApp:
        """FastAPI's stack, inside the middleware for request ids and for the shutdown."""
        return RequestHead(ShutdownReply(super().build_middleware_stack()))

    def openapi(self) -> dict[str, Any]:
        """The description of all routes, with the schemas of bodies that FastAPI does not see."""
        described = super().openapi()
        complete(described, self.routes)
        return described


def build_app(routers: Sequence[APIRouter], metrics: GatewayMetrics) -> GatewayApp:
    """One application of these routers; every exception they raise becomes one typed answer."""
    app = GatewayApp()
    for router in routers:
        app.include_router(router)
    _speak_errors(app, metrics)
    return app


def _speak_errors(app: FastAPI, metrics: GatewayMetrics) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        refusal = _as_gateway_error(request, error)
        metrics.refused(_route(request), refusal.code)
        headers = {"allow": _allowed(app, request)} if refusal.status == 405 else None
        return error_response(refusal, headers)

    async def broke_off(request: Request, error: Exception) -> Response:
        # The meter has counted it: the request had started.
        return error_response(_as_gateway_error(request, error))

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=_CLIENT_CLOSED)

    async def unforeseen(request: Request, _: Exception) -> Response:
        _LOG.error("request %s broke the gateway", request_id_of(request.scope))
        return internal_error_response()

    for kind in (GatewayError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(EngineError, broke_off)
    app.add_exception_handler(ClientGone, gone)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unforeseen)


def _as_gateway_error(request: Request, error: Exception) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, EngineError):
        return from_engine(error)
    if isinstance(error, HTTPException):
        return from_http(request, error)
    return BadRequest("a parameter has the wrong type", param=_parameter(error))


def _parameter(error: Exception) -> str | None:
    """The first parameter that the framework could not read."""
    found = error.errors() if isinstance(error, RequestValidationError) else ()
    return next((str(one["loc"][-1]) for one in found), None)


def _allowed(app: FastAPI, request: Request) -> str:
    """All methods of this path, for the `Allow` header; the framework knows those of one route."""
    methods = {
        method
        for path, operations in app.openapi()["paths"].items()
        if compile_path(path)[0].fullmatch(request.url.path)
        for method in operations
    }
    return ", ".join(sorted(method.upper() for method in methods))


def _route(request: Request) -> str:
    """The route's template. A raw path could be anything, so it is no label for metrics."""
    route = request.scope.get("route")
    return getattr(route, "path", "unknown")
