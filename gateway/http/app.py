"""The web application: its routers, and a typed answer for every error.

`composition.py` makes the routers, `error_dialect.py` writes errors, and `connection.py` receives
bytes.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from engine.errors import EngineError
from gateway.errors import BadRequest, GatewayError, MethodNotAllowed, NotFound, from_engine
from gateway.http.answers.packed import Packed
from gateway.http.cors import Cors
from gateway.http.direct import DirectRoutes, direct_routes
from gateway.http.error_dialect import Dialects, error_response, follow_client
from gateway.http.openapi import JSON, complete, flattened
from gateway.http.request_head import ClientGone, RequestHead, route_of, running_request
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.refusals import LastRefusals, Refusal

_LOG = logging.getLogger(__name__)
_INTERNAL = GatewayError("internal error of the gateway")
_WORTH_GZIP = 1024
_LEVEL = 4  # gzip's level: fast, and small enough for JSON
_CLIENT_CLOSED = 499  # nginx's status for a client that has disconnected before the answer


class GatewayApp(FastAPI):
    """FastAPI without docs pages and redirects, with an id for every request."""

    def __init__(
        self, dialects: Dialects, cors: Cors | None = None, access_log: AccessLog | None = None
    ) -> None:
        self._dialects = dialects
        self._cors = cors
        self._access_log = access_log
        self._description: asyncio.Future[Packed] | None = None
        super().__init__(
            title="Ratoon",
            openapi_url=None,  # the schema would be rendered for every request
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        self.add_route("/openapi.json", self._describe, include_in_schema=False)

    def build_middleware_stack(self) -> ASGIApp:
        """Build FastAPI's stack inside the middleware `RequestHead`."""
        stack = super().build_middleware_stack()
        routes, handlers = direct_routes(self.routes), self.exception_handlers
        direct = DirectRoutes(stack, routes, handlers)
        # The middleware leaves event streams as they are, and compresses large answers in a thread.
        inner = GZipMiddleware(direct, minimum_size=_WORTH_GZIP, compresslevel=_LEVEL)
        return RequestHead(inner, self._dialects, self._cors, self._access_log)

    def openapi(self) -> dict[str, Any]:
        """Describe all routes in OpenAPI, with the schemas of bodies that FastAPI does not see."""
        described = super().openapi()
        complete(described, self.routes, self._dialects)
        return described

    async def _describe(self, request: Request) -> Response:
        """Describe all routes once, in a thread, since this takes 0.3 s and anyone may ask."""
        if self._description is None:
            self._description = asyncio.ensure_future(asyncio.to_thread(self._described))
        return (await asyncio.shield(self._description)).answer(request, {}, JSON)

    def _described(self) -> Packed:
        return Packed.of(msgspec.json.encode(self.openapi()))


def build_app(
    routers: Sequence[APIRouter],
    metrics: GatewayMetrics,
    dialects: Dialects,
    cors: Cors | None = None,
    access_log: AccessLog | None = None,
    refusals: LastRefusals | None = None,
) -> GatewayApp:
    """Build an application of these routers. Every exception is answered with a typed error.

    `refusals` lists every request that is refused, or that fails before its answer begins.
    """
    app = GatewayApp(dialects, cors, access_log)
    for router in routers:
        app.routes.extend(router.routes)  # `include_router` would analyse each route again
    _speak_errors(app, metrics, refusals or LastRefusals())
    return app


def _methods_of(app: FastAPI, path: str) -> str:
    """List the methods of all routes at a path, for the header `Allow` of a 405."""
    found = (route.methods for route in flattened(app.routes) if route.path_regex.match(path))
    methods = set().union(*found)
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _speak_errors(app: FastAPI, metrics: GatewayMetrics, refusals: LastRefusals) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            follow_client(request.scope)
        refusal = _noted(request, error, refusals)
        metrics.refused(route_of(request.scope), refusal.code)
        allow = {"allow": _methods_of(app, request.url.path)} if refusal.status == 405 else None
        return error_response(request.scope, refusal, allow)

    async def broke_off(request: Request, error: Exception) -> Response:
        # The request metrics count this request, since it has started.
        return error_response(request.scope, _noted(request, error, refusals))

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=_CLIENT_CLOSED)

    async def unforeseen(request: Request, _: Exception) -> Response:
        running = running_request(request.scope)
        _note(request, _INTERNAL, refusals)
        _LOG.error("request %s (%s) broke the gateway", running.id, running.shown_id)
        return error_response(request.scope, _INTERNAL)

    for kind in (GatewayError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(EngineError, broke_off)
    app.add_exception_handler(ClientGone, gone)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unforeseen)


def _noted(request: Request, error: Exception, refusals: LastRefusals) -> GatewayError:
    refusal = _as_gateway_error(request, error)
    _note(request, refusal, refusals)
    return refusal


def _note(request: Request, refusal: GatewayError, refusals: LastRefusals) -> None:
    running = running_request(request.scope)
    running.refusal = refusal.code
    refusals.add(
        Refusal(
            at=time.time(),
            request_id=running.id,
            client_id=running.client_id,
            tenant=running.tenant_id,
            stranger=running.owner is None,
            route=route_of(request.scope),
            status=refusal.status,
            code=refusal.code,
            message=refusal.message,
        )
    )


def _as_gateway_error(request: Request, error: Exception) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, EngineError):
        return from_engine(error)
    if isinstance(error, HTTPException):
        return _from_http(request, error)
    return BadRequest("a parameter has the wrong type", param=_parameter(error))


def _from_http(request: Request, error: HTTPException) -> GatewayError:
    if error.status_code == 404:
        return NotFound(f"there is no such route; {_hint(request.url.path)}", code="unknown_url")
    if error.status_code == 405:
        return MethodNotAllowed(
            f"this route does not support {running_request(request.scope).method}"
        )
    if error.status_code < 500:
        return BadRequest("the request cannot be read")
    return _INTERNAL


def _hint(path: str) -> str:
    """Say what the client's base URL lacks or repeats, or where all routes are listed."""
    versions = sum(part in ("v1", "v1beta") for part in path.split("/"))
    if versions == 1:
        return "/openapi.json lists all routes"
    return f"perhaps the client's base URL {'has /v1 twice' if versions else 'lacks /v1'}"


def _parameter(error: Exception) -> str | None:
    found = error.errors() if isinstance(error, RequestValidationError) else ()
    return next((str(one["loc"][-1]) for one in found), None)
