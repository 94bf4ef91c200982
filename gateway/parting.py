"""A request that the end of the gateway's grace cuts off is told so: 503, if nothing was sent yet.

An answer that has begun is a stream, which tells it as its last event (`openai/stream.py`).

Knows: that the server cancels whom it cuts off. Does not know: when it does (`server.py`).
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import shutting_down
from gateway.openai.errors import error_response


class Parting:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application; being cancelled ends here."""
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
