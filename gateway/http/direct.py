"""The routes that are reached without the framework: those of each generated token.

FastAPI describes them like all others. But to find one of its routes it tries them one by one, and
then it solves the dependencies and keeps exit stacks, anew for each request. Here it is a look into
a table and two calls.

    POST to a path in the table --> caller -> permit -> handler -> answer
    all else --> FastAPI

Knows: paths, and what the handlers depend on. Does not know: what they do, or how errors are
answered: that is the application's, here as there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])


def direct(
    router: APIRouter, path: str, openapi_extra: dict[str, Any]
) -> Callable[[Handler], Handler]:
    """Add a handler of a request and its permit for POST to `path`, as a `DirectRoute`.

    TypeError for a handler that depends on anything else.
    """

    def add(handler: Handler) -> Handler:
        router.add_api_route(
            path,
            handler,
            methods=["POST"],
            openapi_extra=openapi_extra,
            route_class_override=DirectRoute,
        )
        return handler

    return add


class DirectRoute(APIRoute):
    """A route whose handler takes the request and a permit, which depends on the caller alone."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        permit = _only_dependency(self.dependant)
        caller = _only_dependency(permit)
        if caller.dependencies:
            raise TypeError(f"{path}: who calls depends on more than the request")
        self._caller: Callable[[Request], Awaitable[Any]] = _call_of(caller)
        permitted: Callable[[Any], AsyncIterator[Any]] = _call_of(permit)
        self._permit = asynccontextmanager(permitted)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application; the permit is given back when the answer has been sent."""
        request = Request(scope, receive, send)
        async with self._permit(await self._caller(request)) as permit:
            response: Response = await self.endpoint(request, permit)
            await response(scope, receive, send)


class DirectRoutes:
    """ASGI middleware around FastAPI's own stack, for the requests of direct routes."""

    def __init__(
        self, rest: ASGIApp, routes: Iterable[DirectRoute], handlers: Mapping[Any, Any]
    ) -> None:
        """Route directly; `handlers` of exceptions, by their types, are the application's."""
        self._rest = rest
        self._routes = {route.path: route for route in routes}
        foreseen = {kind: one for kind, one in handlers.items() if kind is not Exception}
        answered = ExceptionMiddleware(_respond, handlers=foreseen)
        self._direct = ServerErrorMiddleware(answered, handler=handlers.get(Exception))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        route = self._routes.get(scope["path"]) if scope.get("method") == "POST" else None
        if route is None:
            await self._rest(scope, receive, send)
        else:
            scope["route"] = route
            await self._direct(scope, receive, send)


def direct_routes(routes: Iterable[Any]) -> list[DirectRoute]:
    """Find those of the routers that were included in an application with these `routes`.

    Of routers within routers there are none: what these were included with counts there alone.
    """
    included = (getattr(one, "original_router", None) for one in routes)
    return [
        route
        for router in included
        if router is not None
        for route in router.routes
        if isinstance(route, DirectRoute)
    ]


async def _respond(scope: Scope, receive: Receive, send: Send) -> None:
    route: DirectRoute = scope["route"]
    await route.respond(scope, receive, send)


def _only_dependency(dependant: Dependant) -> Dependant:
    """Return what it depends on beside the request; raise TypeError unless that is one thing."""
    params = (
        dependant.path_params,
        dependant.query_params,
        dependant.header_params,
        dependant.cookie_params,
        dependant.body_params,
    )
    if any(params) or len(dependant.dependencies) != 1:
        raise TypeError(f"{dependant.call} does not depend on the request and one thing more")
    return dependant.dependencies[0]


def _call_of(dependant: Dependant) -> Callable[..., Any]:
    if dependant.call is None:
        raise TypeError("a dependency that cannot be called")
    return dependant.call
