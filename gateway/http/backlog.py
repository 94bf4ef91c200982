"""What clients have not read yet of their streams: bounded by stream, by tenant and in all.

A stream is generated at the engine's pace and read at its client's. Whoever generates it never
waits for the client, or the client's pace would decide when stop strings are found and what is
counted.

    message --> connection                  as long as the client reads
       `------> backlog --> connection      once the connection has enough to send; in order
    too much in the backlogs                the longest of the tenant with the most is cut off

Knows: messages of answers, and bytes. Does not know: what is in them, or when a connection has
enough to send (`Flow`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from starlette.types import Message, Scope, Send

from gateway.config import Bounds
from gateway.errors import AnswerNotRead
from gateway.http.request_head import RunningRequest, body_send, running_request

_AT_ONCE = 64 << 10  # bytes that are handed to the connection together: as many as it may hold
_BODY = "http.response.body"
_KEY = "ratoon.reader"

_LOG = logging.getLogger(__name__)


class Flow(Protocol):
    """Whether a connection has enough to send (uvicorn's flow control)."""

    write_paused: bool


class _Flowing:
    """Of a server that does not say."""

    write_paused = False


class Backlogs:
    """The backlogs of one server. For one event loop."""

    def __init__(self, bounds: Bounds) -> None:
        self._most_of_stream = bounds.max_unread_bytes
        self._most_of_one = bounds.max_tenant_unread_bytes
        self._most = bounds.max_all_unread_bytes
        self._held = Counter[str | None]()  # bytes, by tenant
        self._total = 0
        self._open: dict[str | None, set[Backlog]] = {}  # those in which something waits

    def __len__(self) -> int:
        """How many bytes wait now."""
        return self._total

    def count(self, backlog: Backlog, more: int) -> None:
        """So many bytes more wait in it than before; cut off whoever has too much now."""
        tenant_id = backlog.tenant_id
        self._total += more
        self._held[tenant_id] += more
        if backlog.size:
            self._open.setdefault(tenant_id, set()).add(backlog)
        else:
            self._forget(backlog)
        if (longest := self._too_long(backlog)) is not None:
            longest.cut_off()

    def _forget(self, backlog: Backlog) -> None:
        of_tenant = self._open[backlog.tenant_id]
        of_tenant.discard(backlog)
        if not of_tenant:
            del self._open[backlog.tenant_id], self._held[backlog.tenant_id]

    def _too_long(self, backlog: Backlog) -> Backlog | None:
        if backlog.size > self._most_of_stream:
            return backlog
        if self._held[backlog.tenant_id] > self._most_of_one:
            return self._longest(backlog.tenant_id)
        if self._total > self._most:
            return self._longest(max(self._held, key=self._held.__getitem__))
        return None

    def _longest(self, tenant_id: str | None) -> Backlog:
        return max(self._open[tenant_id], key=lambda backlog: backlog.size)


class Backlog:
    """One answer's messages on their way to its client. `size`: bytes that wait."""

    def __init__(
        self, backlogs: Backlogs, flow: Flow, running: RunningRequest, send: Send, send_body: Send
    ) -> None:
        self.size = 0
        self.tenant_id = running.tenant_id
        self._backlogs = backlogs
        self._flow = flow
        self._running = running
        self._send = send
        self._send_body = send_body
        self._waiting: deque[Message] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._has_begun = self._is_complete = self._is_cut = False

    async def send(self, message: Message) -> None:
        """Send a message after those before it; does not wait until the client has read them."""
        if self._writing is None and not self._flow.write_paused:
            await self._hand_over(message)
            return
        if self._is_cut:
            return
        self._waiting.append(message)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="backlog")
        self._resize(len(message.get("body", b"")))

    async def sent(self) -> None:
        """Return once nothing waits; raises what ended the sending."""
        if self._writing is not None:
            await self._writing

    async def end(self, message: Message) -> None:
        """Drop what waits, and send `message` in its place, the last, if an answer has begun."""
        self.drop()
        if self._has_begun and not self._is_complete:
            await self._hand_over(message)

    def cut_off(self) -> None:
        """End the request; nothing waits from now on."""
        _LOG.info("cutting off an answer of which %d bytes wait to be read", self.size)
        self._is_cut = True
        self._running.cut_off(AnswerNotRead())
        self.drop()

    def drop(self) -> None:
        """Let nothing wait any more."""
        self._waiting.clear()
        if self._writing is not None:
            self._writing.cancel()
        self._resize(-self.size)

    async def _write(self) -> None:
        while self._waiting:
            message, size = self._next()
            await self._hand_over(message)
            self._resize(-size)
        self._writing = None

    def _next(self) -> tuple[Message, int]:
        """The next message, with those after it that are to be sent with it; its bytes."""
        message = self._waiting.popleft()
        if message["type"] != _BODY:
            return message, 0
        pieces, size = [message["body"]], len(message["body"])
        while self._waiting and size < _AT_ONCE:
            message = self._waiting.popleft()
            pieces.append(message["body"])
            size += len(message["body"])
        return {**message, "body": b"".join(pieces)}, size

    async def _hand_over(self, message: Message) -> None:
        if message["type"] == _BODY:
            await self._send_body(message)
            self._is_complete = not message.get("more_body", False)
        else:
            await self._send(message)
            self._has_begun = True

    def _resize(self, more: int) -> None:
        self.size += more
        if more:
            self._backlogs.count(self, more)


def let_wait(scope: Scope, backlogs: Backlogs, flow: Flow) -> None:
    """Let what is sent in this scope wait in these backlogs when `flow` says so."""
    scope[_KEY] = backlogs, flow


@contextmanager
def backlog_of(scope: Scope, send: Send) -> Iterator[Backlog]:
    """The backlog of an answer, which is dropped at the end."""
    backlogs, flow = scope.get(_KEY) or (Backlogs(Bounds()), _Flowing())
    backlog = Backlog(backlogs, flow, running_request(scope), send, body_send(scope))
    try:
        yield backlog
    finally:
        backlog.drop()
