"""The response that carries an answer as server-sent events.

An error before the first byte is an HTTP status. A later error is the stream's last event, in the
request's dialect. A stream that the gateway cuts off ends in the same way (`request_head.py`).
Frames are taken from the generator as soon as they are made, however slowly the client reads
(`backlog.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.errors import EngineError
from gateway.errors import GatewayError, from_engine
from gateway.http.answers.backlog import Backlog, backlog_of
from gateway.http.error_dialect import dialect_of
from gateway.http.request_head import ClientGone, running_request, until_gone

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # keeps nginx from holding events back
}


class EventStream(Response):
    """A response that streams frames, and closes the frames' generator at the end."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        last: bytes,
        headers: Mapping[str, str],
        error_event: Callable[[GatewayError], bytes] | None = None,
    ) -> None:
        """Stream frames. `last` is the frame that ends a stream without failure.

        `error_event` makes the frame of an error. `headers` are read when the first frame comes, so
        they may be filled until then.
        """
        super().__init__(status_code=200, headers=_HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._last = last
        self._more = headers
        self._error_event = error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone):
            await until_gone(receive, self._send(scope, send))

    async def _send(self, scope: Scope, send: Send) -> None:
        running = running_request(scope)
        own = partial(dialect_of(scope).error_event, request_id=running.shown_id)
        error_event = self._error_event or own
        async with aclosing(self._frames) as frames:
            first = await anext(frames)
            self.headers.update(self._more)
            with backlog_of(scope, send) as backlog:
                try:
                    await self._send_all(first, frames, backlog, error_event)
                except asyncio.CancelledError:  # a client that has disconnected is sent nothing
                    # closing the frames stops the engine, whether or not the client reads
                    await frames.aclose()
                    await backlog.end(_body(error_event(running.error), more=False))
                    raise

    async def _send_all(
        self,
        first: bytes,
        frames: AsyncGenerator[bytes, None],
        backlog: Backlog,
        error_event: Callable[[GatewayError], bytes],
    ) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await backlog.send(start)
        last = self._last
        try:
            await backlog.send(_body(first))
            async for frame in frames:
                await backlog.send(_body(frame))
        except EngineError as error:
            last = error_event(from_engine(error))
        await backlog.send(_body(last, more=False))
        await backlog.sent()


def _body(frame: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": frame, "more_body": more}
