"""A client that reads at its own pace, and the data that it has read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import httptools
from uvicorn.server import ServerState

from gateway.http.protocol.connection import BoundedConnection
from tests.doubles.gateway.wire import Wire
from tests.gateway.usage.ledger.house import House

_HIGH, _LOW = 256, 64  # unsent bytes above which a connection pauses, and below which it resumes
_SLOW_TURNS = 2000  # iterations of the event loop, after which a slow client reads everything
_TURNS = 20_000  # iterations after which a request counts as hanging


@dataclass(frozen=True)
class Pace:
    """A client's pace: at first it reads `at_once` bytes in one of `one_in` iterations of the event
    loop.
    """

    at_once: int = 1 << 20
    one_in: int = 1
    leaves_after: int | None = None  # iterations; None: the client stays to the end
    reads_at_most: int | None = None  # bytes, after which the client reads no more

    def size(self, turn: int, read: int, random: Random) -> int:
        """Return how many bytes to read in iteration `turn`, after `read` bytes."""
        if self.reads_at_most is not None:
            return self.reads_at_most - read
        if turn > _SLOW_TURNS:
            return 1 << 20
        return 0 if random.randrange(self.one_in) else self.at_once


class PacedWire(Wire):
    """A wire that tells its connection when to pause and when to resume."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: BoundedConnection | None = None
        self.unread = bytearray()
        self.is_lost = self._is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unread += data
        if len(self.unread) > _HIGH and not self._is_paused and self.connection is not None:
            self._is_paused = True
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def abort(self) -> None:
        super().abort()
        asyncio.get_running_loop().call_soon(self.lose)

    def read(self, size: int) -> bytes:
        taken = bytes(self.unread[:size])
        del self.unread[:size]
        if self._is_paused and len(self.unread) <= _LOW and self.connection is not None:
            self._is_paused = False
            self.connection.resume_writing()
        return taken

    def lose(self) -> None:
        """Lose the connection, whether the client or the gateway closed it."""
        if not self.is_lost and self.connection is not None:
            self.is_lost = True
            self.connection.connection_lost(None)


@dataclass
class Answer:
    """The bytes of an answer that a client has read. `is_whole`: the answer was read to its end."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    # Callbacks of the HTTP parser.

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_whole = True


async def ask(house: House, request: bytes, pace: Pace, random: Random) -> Answer:
    """Send a request and read the answer; return when the gateway has finished it."""
    wire, state, answer = PacedWire(), ServerState(), Answer()
    connection = house.kind(house.app, state, {})
    wire.connection = connection
    connection.connection_made(wire)
    connection.data_received(request)
    parser, read = httptools.HttpResponseParser(answer), 0
    for turn in range(_TURNS):
        if not state.tasks and not wire.unread:
            break
        if turn == pace.leaves_after:
            wire.lose()
        if wire.is_lost:
            wire.unread.clear()
        elif size := pace.size(turn, read, random):
            data = wire.read(size)
            read += len(data)
            parser.feed_data(data)
        # Meanwhile threads render and tokenise the prompt.
        await asyncio.sleep(0.0005 if turn % 16 == 0 else 0)
    else:
        raise TimeoutError(f"a request hangs: {request!r}, read at {pace}")
    wire.lose()
    answer.status = parser.get_status_code() if read else 0
    return answer
