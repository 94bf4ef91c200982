"""The unread part of clients' streams, limited per stream, per tenant, and in total.

The engine decides how fast a stream is generated, and the client how fast it is read. Generating
never waits for the client. Otherwise the client's pace would decide when stop strings are found and
how many tokens are counted.

    message --> connection                  as long as the client reads
       `------> backlog --> connection      once the connection has enough to send; in order
    too much in the backlogs                the longest backlog of the fullest tenant is cut off
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from starlette.types import Message, Scope, Send

from gateway.config import Bounds
from gateway.errors import AnswerNotRead
from gateway.http.answers.answer_memory import AnswerMemory, Bound
from gateway.http.request_head import RunningRequest, body_send, running_request

# maximum number of bytes handed to the connection at once, the same as its buffer's size
_AT_ONCE = 64 << 10
_BODY = "http.response.body"
_KEY = "ratoon.reader"

_LOG = logging.getLogger(__name__)


class Flow(Protocol):
    """The flow control of a connection (uvicorn's): whether its send buffer has room."""

    write_paused: bool


class _Flowing:
    """The flow control for a server without flow control: the buffer always has room."""

    write_paused = False


class Backlogs(AnswerMemory):
    """The backlogs of one server's streams. Used in one event loop."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(
            bounds.max_unread_bytes, bounds.max_tenant_unread_bytes, bounds.max_all_unread_bytes
        )


class Backlog:
    """The messages of one answer that wait to be sent to its client. They have `size` bytes."""

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
        """Send a message after earlier messages, without waiting for the client to read them."""
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
        """Wait until all messages have been sent; raise the error that ended the sending."""
        if self._writing is not None:
            await self._writing

    async def end(self, message: Message) -> None:
        """Drop the waiting messages. If an answer has begun, send `message` as the last."""
        self.drop()
        if self._has_begun and not self._is_complete:
            await self._hand_over(message)

    def cut_off(self, beyond: Bound) -> None:
        del beyond  # whichever limit is exceeded, dropping the messages frees the bytes
        _LOG.info("cutting off an answer of which %d bytes wait to be read", self.size)
        self._is_cut = True
        self._running.cut_off(AnswerNotRead())
        self.drop()

    def drop(self) -> None:
        """Drop the waiting messages."""
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
        """Remove the next messages; return them as one message, and its number of bytes."""
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
    """Queue the messages of this scope's answer in `backlogs` while `flow` has no room."""
    scope[_KEY] = backlogs, flow


@contextmanager
def backlog_of(scope: Scope, send: Send) -> Iterator[Backlog]:
    """Open the backlog of an answer. Drop it at the end."""
    backlogs, flow = scope.get(_KEY) or (Backlogs(Bounds()), _Flowing())
    backlog = Backlog(backlogs, flow, running_request(scope), send, body_send(scope))
    try:
        yield backlog
    finally:
        backlog.drop()
