"""An id and a start time for every request: headers `x-request-id` and `openai-processing-ms`.

Also the request's trace: W3C Trace Context's `traceparent` is read, and if there is a trace the
answer has its `traceresponse`.

Knows: ASGI's scope and response start. Does not know: routes. It is the outermost middleware, so
that the answer to an unexpected exception has these headers too.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KEY = "ratoon.head"
_SEND = "ratoon.send"
_LINK = "ratoon.link"


@dataclass(slots=True)
class TraceLink:
    """The trace headers of the request and of its answer."""

    traceparent: str | None = None
    traceresponse: str | None = None


class RequestHead:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, arrived = uuid.uuid4().hex, time.monotonic()
        scope[_KEY] = (request_id, arrived)
        scope[_SEND] = send

        async def send_with_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                spent = f"{(time.monotonic() - arrived) * 1000:.0f}"
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode()),
                    (b"openai-processing-ms", spent.encode()),
                ]
                link: TraceLink | None = scope.get(_LINK)
                if link is not None and link.traceresponse is not None:
                    message["headers"].append((b"traceresponse", link.traceresponse.encode()))
            await send(message)

        await self._app(scope, receive, send_with_head)


def body_send(scope: Scope) -> Send:
    """The server's own `send`, for the body of an answer that has begun.

    The middleware in between only looks at how an answer begins; a stream, which sends a piece for
    every token, saves its cost.
    """
    send: Send = scope[_SEND]
    return send


def request_id_of(scope: Scope) -> str:
    """32 hexadecimal digits that no other request has."""
    request_id: str = scope[_KEY][0]
    return request_id


def arrived_at(scope: Scope) -> float:
    """When the request's head had been read; monotonic seconds."""
    arrived: float = scope[_KEY][1]
    return arrived


def trace_link(scope: Scope) -> TraceLink:
    """The request's trace headers; a `traceresponse` written to it is sent with the answer."""
    parents = [value for name, value in scope["headers"] if name == b"traceparent"]
    parent = parents[0].decode("latin-1") if len(parents) == 1 else None
    link = scope[_LINK] = TraceLink(parent)
    return link
