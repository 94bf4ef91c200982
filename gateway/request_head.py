"""A name and a clock for every request: `x-request-id` and `openai-processing-ms`.

Knows: ASGI's scope and response start. Does not know: routes. It lies outside of everything else
in the application, so that also the answer to an exception nobody foresaw bears the name.
"""

from __future__ import annotations

import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KEY = "ratoon.head"
_SEND = "ratoon.send"


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
            await send(message)

        await self._app(scope, receive, send_with_head)


def body_send(scope: Scope) -> Send:
    """The server's own `send`: what lies between it and a route only looks at how answers begin.

    For the body of an answer that has begun, of which a stream sends a piece for every token.
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
