"""The id, task and end of every request, and the header fields of every answer.

A request has an id, a start time, a dialect, and a task. The gateway cancels the task to cut the
request off, for instance when the grace period ends or the request's key becomes invalid. The
client then gets an error: as the answer if nothing was sent yet, else as the last event of the
stream (`event_stream.py`).

W3C Trace Context's `traceparent` is read. If there is a trace, the answer has its `traceresponse`.
The client's `x-request-id` is repeated. A HEAD request is answered like a GET request, and the
server leaves the body out. A path that ends in `/` is answered like the path without this `/`. Each
request leaves an entry in the access log. This is the outermost middleware, so that the answer to
an unexpected exception has these headers too.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError, shutting_down
from gateway.http.cors import Cors, one_field
from gateway.http.error_dialect import Dialects, dialect_of, error_response
from gateway.http.request_id import client_id_of, new_id
from gateway.telemetry.access_log import AccessLog, AccessLogEntry

T = TypeVar("T")

_KEY = "ratoon.running"
_SEND = "ratoon.send"
_OWNER = "ratoon.owner"
_CLIENT_CLOSED = 499  # nginx's status for a client that has disconnected before the answer
UNKNOWN_ROUTE = "unknown"


class ClientGone(Exception):
    """The error of a client that closed the connection, and so would not read an answer."""


@dataclass(frozen=True, slots=True)
class RequestUse:
    """The record of an admitted request's tokens, and of how the request ended."""

    outcome: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    first_token_s: float | None


class RunningRequest:
    """A request that `task` is answering, with the known facts of the request.

    `id` is the gateway's id of the request. `shown_id`, in the answer, is the client's id if it
    sent an id.
    """

    def __init__(
        self,
        task: asyncio.Task[object] | None,
        traceparent: str | None = None,
        client_id: str | None = None,
        method: str = "GET",
    ) -> None:
        self._task = task
        self.traceparent = traceparent
        self.traceresponse: str | None = None
        self.id = new_id()
        self.client_id = client_id
        self.shown_id = client_id or self.id
        self.method = method
        # owner of the request's key, a tenant's id or OPERATOR; None: no valid key so far
        self.owner: str | None = None
        self.tenant_id: str | None = None
        self.key_id: str | None = None
        self.group_id: str | None = None  # the tenant's group when the request came
        self.route: str | None = None
        self.refusal: str | None = None
        self.used: RequestUse | None = None
        self.arrived = time.monotonic()
        self.error: GatewayError = shutting_down()
        self.is_abandoned = False
        self.at_end = ExitStack()

    def cut_off(self, error: GatewayError) -> None:
        """End the request with `error`, unless it is being cut off already."""
        if self._task is not None and not self._task.cancelling():
            self.error = error
            self._task.cancel()

    def abandon(self) -> None:
        """End the request without an answer, because its client has disconnected."""
        self.is_abandoned = True
        if self._task is not None:
            self._task.cancel()


class RequestHead:
    """An ASGI middleware that gives requests ids, logs them and ends them."""

    def __init__(
        self,
        app: ASGIApp,
        dialects: Dialects,
        cors: Cors | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        self._app = app
        self._dialects = dialects
        self._cors = cors or Cors()
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application. The cancellation of a request ends here: it is not raised."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        if path.endswith("/") and path != "/":
            scope["path"] = path[:-1]
        running = scope[_KEY] = RunningRequest(
            asyncio.current_task(), _traceparent(scope), client_id_of(scope), method
        )
        if method == "HEAD":
            scope = {**scope, "method": "GET"}
        scope[_SEND] = send
        self._dialects.enter(scope, running.shown_id)
        cors = self._cors.fields(scope)
        status: int | None = None

        async def send_with_head(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                spent_ms = (time.monotonic() - running.arrived) * 1000
                fields = dialect_of(scope).head_fields(running.shown_id, spent_ms)
                message["headers"] = [*message["headers"], *fields, *cors]
                if running.traceresponse is not None:
                    message["headers"].append((b"traceresponse", running.traceresponse.encode()))
            await send(message)

        with running.at_end:
            try:
                preflight = self._cors.preflight(scope)
                app = self._app if preflight is None else _Allowed(preflight)
                await app(scope, receive, send_with_head)
            except asyncio.CancelledError:
                if not running.is_abandoned:
                    running.refusal = running.error.code
                    if status is None:
                        answer = error_response(scope, running.error)
                        await answer(scope, receive, send_with_head)
            finally:
                if self._access_log is not None:
                    entry = _entry(scope, running, status)
                    self._access_log.add(entry, of_stranger=running.owner is None)


class _Allowed:
    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        self._fields = fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 204, "headers": self._fields})
        await send({"type": "http.response.body", "body": b""})


def _entry(scope: Scope, running: RunningRequest, status: int | None) -> AccessLogEntry:
    used = running.used
    first_s = None if used is None else used.first_token_s
    return AccessLogEntry(
        time=time.time(),
        id=running.id,
        client_id=running.client_id,
        tenant=running.tenant_id,
        key=running.key_id,
        method=running.method,
        route=route_of(scope),
        status=status or _CLIENT_CLOSED,
        outcome=running.refusal if used is None else used.outcome,
        prompt_tokens=None if used is None else used.prompt_tokens,
        cached_tokens=None if used is None else used.cached_tokens,
        generated_tokens=None if used is None else used.generated_tokens,
        first_token_ms=None if first_s is None else round(first_s * 1000),
        ms=round((time.monotonic() - running.arrived) * 1000),
    )


def route_of(scope: Scope) -> str:
    """Return the route's template, for labels and logs.

    Labels and logs must not have raw paths, since the number of paths is unlimited.
    """
    return getattr(scope.get("route"), "path", UNKNOWN_ROUTE)


def running_request(scope: Scope) -> RunningRequest:
    """Return the running request of this scope."""
    running: RunningRequest = scope[_KEY]
    return running


def tell_owner(scope: MutableMapping[str, Any], owner: str) -> None:
    """Record that the request has a key of `owner`, a tenant's id or OPERATOR.

    Raises TooManyRequests if the tenant has so many connections that other tenants would get none.
    """
    if _KEY in scope:
        scope[_KEY].owner = owner
    if _OWNER in scope:
        scope[_OWNER](owner)


def owner_told_to(scope: MutableMapping[str, Any], told: Callable[[str], None]) -> None:
    """Call `told` with the request's owner as soon as the owner is known."""
    scope[_OWNER] = told


def abandon_if_stranger(scope: MutableMapping[str, Any]) -> None:
    """Abandon the request of a disconnected client, unless the request's key is known to be valid.

    Otherwise keys of any number of disconnected clients could be looked up before a tenant's key.
    """
    running: RunningRequest | None = scope.get(_KEY)
    if running is not None and running.owner is None:
        running.abandon()


def body_send(scope: Scope) -> Send:
    """Return the server's own `send`, for the body of an answer that has begun.

    The middleware in between only needs the beginning of an answer. A stream, which sends a piece
    for every token, saves the middleware's cost for each piece.
    """
    send: Send = scope[_SEND]
    return send


def request_id_of(scope: Scope) -> str:
    """Return the request's id, 32 hexadecimal digits that no other request has."""
    return running_request(scope).id


def _traceparent(scope: Scope) -> str | None:
    parent = one_field(scope, b"traceparent")
    return None if parent is None else parent.decode("latin-1")


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects, cancel `work` and raise ClientGone.

    The body must have been read before, so that the next message is the disconnection.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
