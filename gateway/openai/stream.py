"""The response that carries an answer as server-sent events.

An error before the first byte is an HTTP status; after it, the stream's last event is the error,
without `[DONE]`. The same holds for a stream that the gateway's shutdown cuts off.

Knows: when a status can still be chosen. Does not know: what the events contain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.errors import EngineError
from gateway.disconnect import ClientGone, until_gone
from gateway.errors import from_engine, shutting_down
from gateway.openai.errors import error_reply
from gateway.openai.sse import sse
from gateway.request_head import body_send

_DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would hold events back
}


class EventStream(Response):
    """Sends frames as they come; closes their generator in any case, also if the client leaves."""

    def __init__(self, frames: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        """`headers` are read when the first frame comes, so they may be filled until then."""
        super().__init__(status_code=200, headers=_HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._more = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application; errors before the first byte are raised."""
        with suppress(ClientGone):
            await until_gone(receive, self._send(send, body_send(scope)))

    async def _send(self, send: Send, send_body: Send) -> None:
        async with aclosing(self._frames) as frames:
            first = await anext(frames)
            self.headers.update(self._more)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await send_body(_body(first))
            last = _DONE
            try:
                async for frame in frames:
                    await send_body(_body(frame))
            except EngineError as error:
                last = sse(error_reply(from_engine(error)))
            except asyncio.CancelledError:  # (a client that has gone is sent nothing)
                await send_body(_body(sse(error_reply(shutting_down())), more=False))
                raise
        await send_body(_body(last, more=False))


def _body(frame: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": frame, "more_body": more}
