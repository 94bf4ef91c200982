"""What every request has while it is answered, and the fields that every answer has.

A request has an id, a start time, a dialect, and a task, by which the gateway cuts it off: when its
grace period ends, or the request's key does. If nothing was sent yet, the error is the answer. An
answer that has begun is a stream, whose last event is the error (`event_stream.py`).

W3C Trace Context's `traceparent` is read, and if there is a trace the answer has its
`traceresponse`.

Knows: ASGI's scope, response start and disconnect. Does not know: routes, or when and why a request
is cut off (`server`, `running_requests`). It is the outermost middleware, so that the answer to an
unexpected exception has these headers too.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError, shutting_down
from gateway.http.error_dialect import Dialects, error_response

T = TypeVar("T")

_KEY = "ratoon.running"
_SEND = "ratoon.send"


class ClientGone(Exception):
    """The client closed the connection; an answer would not be read."""


class RunningRequest:
    """A request that is being answered by `task`, with its trace headers if it is traced."""

    def __init__(self, task: asyncio.Task[object] | None, traceparent: str | None = None) -> None:
        self._task = task
        self.traceparent = traceparent
        self.traceresponse: str | None = None
        self.id = uuid.uuid4().hex
        self.arrived = time.monotonic()
        self.error: GatewayError = shutting_down()  # of a cancellation that comes from elsewhere
        self.at_end = ExitStack()  # closed when the request is over

    def cut_off(self, error: GatewayError) -> None:
        """End it with this error, unless it is being cut off already."""
        if self._task is not None and not self._task.cancelling():
            self.error = error
            self._task.cancel()


class RequestHead:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, dialects: Dialects) -> None:
        self._app = app
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application; a cancellation ends here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        running = scope[_KEY] = RunningRequest(asyncio.current_task(), _traceparent(scope))
        scope[_SEND] = send
        dialect = self._dialects.enter(scope, running.id)
        has_begun = False

        async def send_with_head(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                spent_ms = (time.monotonic() - running.arrived) * 1000
                fields = dialect.head_fields(running.id, spent_ms)
                message["headers"] = [*message["headers"], *fields]
                if running.traceresponse is not None:
                    message["headers"].append((b"traceresponse", running.traceresponse.encode()))
            await send(message)

        with running.at_end:
            try:
                await self._app(scope, receive, send_with_head)
            except asyncio.CancelledError:
                if not has_begun:
                    answer = error_response(scope, running.error)
                    await answer(scope, receive, send_with_head)


def running_request(scope: Scope) -> RunningRequest:
    """The request of this scope."""
    running: RunningRequest = scope[_KEY]
    return running


def body_send(scope: Scope) -> Send:
    """The server's own `send`, for the body of an answer that has begun.

    The middleware in between only looks at how an answer begins; a stream, which sends a piece for
    every token, saves its cost.
    """
    send: Send = scope[_SEND]
    return send


def request_id_of(scope: Scope) -> str:
    """32 hexadecimal digits that no other request has."""
    return running_request(scope).id


def _traceparent(scope: Scope) -> str | None:
    parents = [value for name, value in scope["headers"] if name == b"traceparent"]
    return parents[0].decode("latin-1") if len(parents) == 1 else None


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; ClientGone, with `work` cancelled, when the client goes first.

    For use after the body has been read: the next message is then the end of the connection.
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
