"""Raw bytes sent through a connection in memory, the requests that reach the application, and the
answers.

The connection is made as uvicorn makes it, before a small application, without network or clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import httptools
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.config import Bounds
from gateway.dialects.openai.dialect import OpenAI
from gateway.http.error_dialect import Dialects
from gateway.http.protocol.connection import BoundedConnection
from tests.doubles.gateway.wire import Wire

EARLY = "/early"  # a path whose requests are answered before their body is read
BOUNDS = Bounds(max_head_bytes=2048)
DIALECTS = Dialects(OpenAI())
MOST_TURNS = 20_000  # iterations of the event loop, after which the connection counts as stuck

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Seen:
    """A request that the application received."""

    method: str
    target: bytes
    fields: Fields
    body: bytes


@dataclass(frozen=True)
class Answer:
    """An answer that the client received."""

    status: int
    body: bytes
    closes: bool


@dataclass
class Outcome:
    """The outcome of a connection. `seen`: requests whose bodies the application read
    completely.
    """

    seen: list[Seen] = field(default_factory=list)
    started: list[Seen] = field(default_factory=list)
    sent: bytes = b""
    is_closed: bool = False
    is_stuck: bool = False  # the client has sent everything, but the connection does nothing more
    most_waiting: int = 0  # most bytes that were received and not yet parsed


class Application:
    """An application that reads a request's body and answers 200; at `EARLY` it answers at once."""

    def __init__(self) -> None:
        self.outcome = Outcome()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = tuple((bytes(name), bytes(value)) for name, value in scope["headers"])
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        seen = Seen(scope["method"], scope["raw_path"] + query, fields, b"")
        self.outcome.started.append(seen)
        if scope["path"] != EARLY:
            body = await self._read(receive)
            if body is None:
                return
            # The fields are copied after the body, since trailers may be appended to the scope
            # after the head.
            fields = tuple((bytes(name), bytes(value)) for name, value in scope["headers"])
            self.outcome.seen.append(Seen(seen.method, seen.target, fields, body))
        head = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"ok"})

    async def _read(self, receive: Receive) -> bytes | None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message["body"]
            more = message["more_body"]
        return body


class _Restless(BoundedConnection):
    """A connection without pauses, which reports its number of unparsed bytes."""

    rest_s = 0.0
    pipelined_s = 0.0

    @property
    def num_waiting(self) -> int:
        return len(self._received)


async def exchange(
    kind: type[BoundedConnection], pieces: Iterable[bytes], *, turns: int = 0
) -> Outcome:
    """Send the pieces to a connection of this kind, with `turns` iterations of the event loop after
    each.
    """
    application, wire, state = Application(), Wire(), ServerState()
    config = uvicorn.Config(application, log_config=None, access_log=False, lifespan="off")
    connection = type("Restless", (_Restless, kind), {})(config, state, {})
    outcome = application.outcome
    connection.connection_made(wire)
    for piece in pieces:
        if wire.is_closing():
            break
        connection.data_received(piece)
        outcome.most_waiting = max(outcome.most_waiting, connection.num_waiting)
        for _ in range(turns):
            await asyncio.sleep(0)
        outcome.is_stuck = not await _until_reading(wire)
        if outcome.is_stuck:
            break
    await _until_quiet(connection, wire)
    outcome.is_closed = wire.is_closing() or "eof" in wire.asked
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks, return_exceptions=True)
    outcome.sent = b"".join(wire.sent)
    return outcome


async def _until_reading(wire: Wire) -> bool:
    for _ in range(MOST_TURNS):
        if wire.is_reading_now or wire.is_closing():
            return True
        await asyncio.sleep(0)
    return False


async def _until_quiet(connection: _Restless, wire: Wire) -> None:
    """Wait until several iterations of the event loop have changed nothing."""
    quiet, before = 0, (-1, -1)
    while quiet < 12 and not wire.is_closing():
        await asyncio.sleep(0)
        now = len(wire.sent), connection.num_waiting
        quiet = quiet + 1 if now == before else 0
        before = now


class _Answers:
    """The answers that an HTTP client's parser reads from the bytes."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        closes = not self._parser.should_keep_alive()
        self.answers.append(Answer(self._parser.get_status_code(), self._body, closes))

    def read(self, data: bytes) -> list[Answer]:
        self._parser.feed_data(data)
        return self.answers


def answers_in(outcome: Outcome) -> list[Answer] | None:
    """Return the sent answers. Raises HttpParserError if they are malformed.

    Returns None after a HEAD, whose answer has a length but no body, which this parser cannot know.
    """
    if any(seen.method == "HEAD" for seen in outcome.started):
        return None
    return _Answers().read(outcome.sent.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))


def bytewise(data: bytes) -> Iterator[bytes]:
    """Return each byte as its own packet."""
    return (data[place : place + 1] for place in range(len(data)))


def halves(data: bytes) -> Iterator[bytes]:
    """Return the first half, then half of the rest, and so on to the last byte."""
    while data:
        middle = (len(data) + 1) // 2
        yield data[:middle]
        data = data[middle:]
