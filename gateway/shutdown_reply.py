"""The 503 for a request that is still running when the gateway's grace period ends.

It is sent only if nothing was sent yet: an answer that has begun is a stream, which reports the
shutdown as its last event (`openai/stream.py`).

Knows: that the server cancels the requests it cuts off. Does not know: when (`server.py`).
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import shutting_down
from gateway.openai.errors import error_response


class ShutdownReply:
    """ASGI middleware that answers a cancelled request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application; a cancellation ends here."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if not has_begun:
                await error_response(shutting_down())(scope, receive, send)
