"""The routes that bypass the framework: the routes that generate tokens.

FastAPI only describes these routes. For each request FastAPI would try its routes one by one, solve
dependencies and keep exit stacks. A direct route takes one look into a table and two calls. A path
that contains a model's name is a template, which is tried after the table.

    POST to a path in the table --> caller -> permit -> handler -> answer
    every other request --> FastAPI

The application answers errors, as for FastAPI's routes.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

C = TypeVar("C")
P = TypeVar("P")
_IN_PATH = re.compile(r"\{(\w+)")
Handler = Callable[[Request, P], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Guard(Generic[C, P]):
    """A guard that identifies the caller and holds a permit until the answer is sent."""

    authenticate: Callable[[Request], Awaitable[C]]
    permit: Callable[[C], AbstractAsyncContextManager[P]]


def direct(
    router: APIRouter, path: str, guard: Guard[C, P], openapi_extra: dict[str, Any]
) -> Callable[[Handler[P]], Handler[P]]:
    """Add a handler for POST to `path` as a `DirectRoute`.

    The handler is called with the request and its permit.
    """

    def add(handler: Handler[P]) -> Handler[P]:
        if named := _IN_PATH.findall(path):
            parameters = [_in_path(name) for name in named]
            openapi_extra["parameters"] = [*parameters, *openapi_extra.get("parameters", ())]
        route = DirectRoute(
            router.prefix + path,
            _only_described,
            methods=["POST"],
            name=handler.__name__,
            description=handler.__doc__,
            dependencies=[Depends(guard.authenticate)],  # tells OpenAPI which key the route needs
            openapi_extra=openapi_extra,
        )
        route.guard, route.handler = guard, handler
        router.routes.append(route)
        return handler

    return add


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


async def _only_described() -> None:
    # The framework's table has this function in place of the handler and never calls it, since
    # FastAPI would solve a handler's parameters. A docstring here would become the route's
    # description.
    ...


class DirectRoute(APIRoute):
    """A route that the framework describes and `DirectRoutes` answers."""

    guard: Guard[Any, Any]
    handler: Handler[Any]

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application. Give the permit back when the answer has been sent."""
        request = Request(scope, receive, send)
        async with self.guard.permit(await self.guard.authenticate(request)) as permit:
            response = await self.handler(request, permit)
            await response(scope, receive, send)


class DirectRoutes:
    """An ASGI middleware around FastAPI's own stack that answers direct routes."""

    def __init__(
        self, rest: ASGIApp, routes: Iterable[DirectRoute], handlers: Mapping[Any, Any]
    ) -> None:
        """Put direct routes around `rest`; `handlers` are exception handlers by type."""
        self._rest = rest
        known = {route.path: route for route in routes}
        self._templates = [route for path, route in known.items() if "{" in path]
        self._routes = {path: route for path, route in known.items() if "{" not in path}
        foreseen = {kind: one for kind, one in handlers.items() if kind is not Exception}
        answered = ExceptionMiddleware(_respond, handlers=foreseen)
        self._direct = ServerErrorMiddleware(answered, handler=handlers.get(Exception))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._route_of(scope) if scope.get("method") == "POST" else None
        if route is None:
            await self._rest(scope, receive, send)
        else:
            scope["route"] = route
            await self._direct(scope, receive, send)

    def _route_of(self, scope: Scope) -> DirectRoute | None:
        found = self._routes.get(scope["path"])
        if found is not None:
            return found
        for route in self._templates:
            named = route.path_regex.match(scope["path"])
            if named is not None:
                scope["path_params"] = named.groupdict()
                return route
        return None


def direct_routes(routes: Iterable[Any]) -> list[DirectRoute]:
    """Find the direct routes of an application with these `routes`.

    Routes of included routers are left out, because only FastAPI applies the options of an
    inclusion.
    """
    return [route for route in routes if isinstance(route, DirectRoute)]


async def _respond(scope: Scope, receive: Receive, send: Send) -> None:
    route: DirectRoute = scope["route"]
    await route.respond(scope, receive, send)
