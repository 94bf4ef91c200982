"""One client's connection, with bounds that the web server does not have.

uvicorn waits without limit for a request head that comes byte by byte, accepts a head of any
length, and waits without limit for a client that does not read. Each of these lets a client hold
memory or a running request at no cost to itself.

Knows: bytes, heads, deadlines. Does not know: routes or what is in a body.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.config import Bounds
from gateway.errors import BadRequest
from gateway.joined_head import JoinedHead
from gateway.openai.errors import error_reply

_HEAD_TOO_LARGE = BadRequest("the request's head is too large", code="head_too_large")
_UNREADABLE = BadRequest("this is not a valid HTTP request", code="invalid_http")
_HEAD_END = b"\r\n\r\n"
_UPGRADE = re.compile(rb"(\r\nupgrad)e:", re.IGNORECASE)


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection with deadlines; a client that misses one is disconnected."""

    bounds: ClassVar[Bounds]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True  # or before it
        self._held = b""  # the end of what came of a head, if an `Upgrade` header may begin there

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the deadline for the first head: a silent client is treated like a slow one."""
        super().connection_made(JoinedHead(transport, self.loop))
        self._request_within(self.bounds.head_deadline_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines."""
        self._request_within(None)
        self._write_within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse `data`; refuse a head as soon as it exceeds its bound."""
        if self._in_head:
            self._head_bytes += len(data)
            data = self._without_upgrade(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.bounds.max_head_bytes:
            self._refuse(431, _HEAD_TOO_LARGE)

    def _without_upgrade(self, data: bytes) -> bytes:
        """`data` of a request's head, with any header `Upgrade` renamed.

        A server may ignore that header, and this one does, but the parser would treat the body as
        the new protocol. Java's HTTP client offers HTTP/2 this way in its first request.
        """
        data, self._held = self._held + data, b""
        end = data.find(_HEAD_END)
        if end < 0:
            line = max(data.rfind(b"\r"), 0)
            if b"\r\nupgrade:".startswith(data[line:].lower()):
                data, self._held = data[:line], data[line:]
            end = len(data)
        return _UPGRADE.sub(rb"\1-:", data[:end]) + data[end:]

    def on_message_begin(self) -> None:
        """A request's first byte has come."""
        super().on_message_begin()
        self._in_head = True
        self._request_within(self.bounds.head_deadline_s)

    def on_headers_complete(self) -> None:
        """A request's head has come."""
        self._in_head = False
        self._head_bytes = 0
        self._request_within(self.bounds.body_deadline_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request has come whole; what comes now is the head of the next."""
        self._in_head = True
        self._request_within(None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        super().pause_writing()
        self._write_within(self.bounds.stalled_write_s)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._write_within(None)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Refuse bytes that are no HTTP request."""
        self._refuse(400, _UNREADABLE)

    def _refuse(self, status: int, error: BadRequest) -> None:
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(error_reply(error))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _request_within(self, seconds: float | None) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
        self._request_deadline = self._cut_off_after(seconds)

    def _write_within(self, seconds: float | None) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        self._write_deadline = self._cut_off_after(seconds)

    def _cut_off_after(self, seconds: float | None) -> asyncio.TimerHandle | None:
        return None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def connection_within(bounds: Bounds) -> type[BoundedConnection]:
    """The connection class for uvicorn, which makes the instances itself."""
    return type("Connection", (BoundedConnection,), {"bounds": bounds})
