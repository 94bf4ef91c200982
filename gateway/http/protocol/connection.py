"""One client's connection, with limits that uvicorn does not have.

uvicorn accepts heads and trailers of any length. uvicorn also accepts any number of requests before
the first is answered, and waits without limit for a head. A client could thus hold memory or keep
the event loop busy at no cost.

Here received bytes wait to be parsed. A head is parsed once it is whole. The next request is parsed
once the request before it is answered. If the client did not wait for that answer, its next request
is parsed a moment later. One piece of a body is parsed in each turn of the event loop. While many
bytes wait, no more are received.
"""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, cast

import httptools
from starlette.types import Scope

from gateway.config import Bounds
from gateway.errors import GatewayError, RequestTimeout
from gateway.http.answers.backlog import Backlogs
from gateway.http.answers.whole_answer import GatheredAnswers
from gateway.http.cors import Cors
from gateway.http.error_dialect import Dialects
from gateway.http.protocol.answering_side import AnsweringSide
from gateway.http.protocol.counted_connection import CountedConnection, uncounted
from gateway.http.protocol.framing import (
    FRAMING_TOO_LARGE,
    UNREADABLE,
    BodyFraming,
    HeadFraming,
    fault_of_head,
)
from gateway.http.protocol.holders import Holders
from gateway.http.protocol.own_cookies import own_cookies
from gateway.http.protocol.state import State
from gateway.http.protocol.timer import Timer
from gateway.http.request_head import owner_told_to

# maximum digits of a declared length; 19 digits fit in 64 bits
MAX_LENGTH_DIGITS = 19
# maximum bytes that wait to be parsed, also the maximum of a chunked body parsed in one turn
_ROOM = 64 << 10
_MAX_SLICES = 64  # maximum slices of a chunked body parsed in one turn
_MAX_PIECES = 64
# maximum bytes of a chunked body that are parsed after the answer, in order to discard them
_MAX_DRAINED_CHUNKS = 64 << 10
# The rest of a body is discarded until its deadline, one piece every `rest_s` seconds. Many clients
# send the whole body before they read the answer. They would lose the answer if the connection were
# closed.
_UNTIL_DEADLINE = sys.maxsize
_LINGER_S = 2.0  # seconds for a refused client to read the refusal and close
_LINGER_BYTES = 1 << 20

_TOO_SLOW = RequestTimeout("the request did not come whole in time")


class BoundedConnection(CountedConnection):
    """uvicorn's connection with limits. A client that exceeds a limit is cut off with an error."""

    __slots__ = ("_deadline", "_framing", "_head", "_next_turn", "_receives", "_to_drain")

    rest_s: ClassVar[float] = 0.05  # seconds between discarded pieces of a body
    # seconds from an answer to the parsing of a request that was sent before this answer
    pipelined_s: ClassVar[float] = 0.01

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = HeadFraming(self.bounds.max_head_bytes)
        self._framing = BodyFraming(0)
        self._to_drain = 0  # maximum number of bytes still to be discarded
        self._receives = True
        self._next_turn = Timer(self.loop, self._take_turn)
        self._deadline = Timer(self.loop, self._expire)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first head, so that a silent client counts as a slow client."""
        super().connection_made(transport)
        if not self.transport.is_closing():
            self._enter(State.IDLE, self.bounds.head_deadline_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(State.CLOSED, None)
        self._next_turn.restart(None)
        self._received.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Store `data`, and parse the next part unless a later turn is to parse it."""
        if self.transport.is_closing():
            return
        if self.state is State.ENDED:
            self._to_drain -= len(data)
            if self._to_drain < 0:
                self.transport.abort()
            self._rest()
            return
        self._received += data
        if not self._next_turn.is_due:
            self._take_turn()

    def pause_reading(self) -> None:
        """Stop parsing, since the application takes the body more slowly than it comes."""

    def resume_reading(self) -> None:
        """Continue parsing, since the application waits for more of the body."""
        if self._is_in_body:
            self._next_turn.soon()

    def _take_turn(self) -> None:
        """Parse a head and the first piece of its body, or the next piece of a body."""
        if self.transport.is_closing():
            return
        if self.state in (State.IDLE, State.HEAD):
            self._parse_head()
        if self._is_in_body and self._received and not self.flow.read_paused:
            self._parse_body()
        if self._received and not self.flow.read_paused:
            self._go_on()
        self._receive_if_there_is_room()

    def _go_on(self) -> None:
        """Parse more of the waiting bytes in a later turn.

        A request that was sent before the previous request's answer waits longer. Otherwise one
        turn of the event loop could answer such a request of every connection. Clients that wait
        for an answer before their next request would wait for all these answers.
        """
        if self._is_in_body:
            self._next_turn.soon()
        elif self.state is State.IDLE:
            self._next_turn.after(self.pipelined_s)

    def _rest(self) -> None:
        self._next_turn.after(self.rest_s)
        self._receive_if_there_is_room()

    def _receive_if_there_is_room(self) -> None:
        has_room = self.state is State.HEAD or len(self._received) <= _ROOM
        if self.state in (State.DRAINING, State.ENDED):
            has_room = not self._next_turn.is_due
        if has_room is not self._receives and not self.transport.is_closing():
            self._receives = has_room
            (self.transport.resume_reading if has_room else self.transport.pause_reading)()

    def _parse_head(self) -> None:
        if self._received and self.state is State.IDLE:
            self._enter(State.HEAD, self.bounds.head_deadline_s)
        try:
            head = self._head.take(self._received)
        except GatewayError as error:
            self._refuse(error)
            return
        if head is not None:
            self._parse(head)
            if self.state is State.HEAD:
                self._refuse(UNREADABLE)

    def _parse_body(self) -> None:
        left, pieces = _ROOM, self._framing.pieces
        for _ in range(_MAX_SLICES):
            piece = self._framing.take(self._received)
            left -= len(piece)
            self._parse(piece)
            if not self._framing.is_within_bounds(piece):
                self._refuse(FRAMING_TOO_LARGE)
            if self.state is State.DRAINING:
                self._drain(len(piece))
            is_enough = left <= 0 or self._framing.pieces - pieces > _MAX_PIECES
            if is_enough or not (self._received and self._is_in_body) or self.flow.read_paused:
                break
        if self.state is State.DRAINING:
            self._rest()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(UNREADABLE)

    def on_message_begin(self) -> None:
        """Start a new request's head.

        The parser gets bytes of one message at a time, so these bytes start no second message.
        """
        if self.state is not State.HEAD:
            raise httptools.HttpParserError("a message within a message")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header field. Fields that come after the body are only counted."""
        if self.state is not State.HEAD:
            self._framing.on_trailer(name, value)
        elif name.lower() == b"content-length" and len(value) > MAX_LENGTH_DIGITS:
            raise httptools.HttpParserError("the length of the body has too many digits")
        elif name.lower() != b"cookie":
            super().on_header(name, value)
        elif cookies := own_cookies(value):
            super().on_header(name, cookies)

    def on_headers_complete(self) -> None:
        """Start the application, since the request's head is complete."""
        if self.parser.should_upgrade():
            raise httptools.HttpParserError("CONNECT is for proxies")
        if fault := fault_of_head(self.headers, self.parser.get_http_version()):
            raise httptools.HttpParserError(fault)
        owner_told_to(cast("Scope", self.scope), partial(self.holders.tell, self))
        super().on_headers_complete()
        self.cycle.transport = AnsweringSide(self.transport, self.close_after_body)
        self._framing = BodyFraming.of(self.headers)
        self._enter(State.BODY, self.bounds.body_deadline_s)

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body to the request."""
        self._framing.on_body(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that the request is complete."""
        super().on_message_complete()
        if self.state is State.DRAINING:
            self._await_request()
        else:
            self._enter(State.ANSWERING, None)

    def on_response_complete(self) -> None:
        """Parse the next waiting request, since the application has answered the one before."""
        self.server_state.total_requests += 1
        self.forget_request()
        if self.state is State.ANSWERING:
            self._await_request()
        elif self.state is State.BODY:
            is_chunked = self._framing.is_chunked
            self._to_drain = _MAX_DRAINED_CHUNKS if is_chunked else _UNTIL_DEADLINE
            self.state = State.DRAINING
        self.flow.resume_reading()
        if self._received:
            self._go_on()

    @property
    def is_idle(self) -> bool:
        """True if no answer is awaited. The rest of a body may remain to be discarded."""
        is_answered = self.state in (State.DRAINING, State.ENDED)
        return is_answered or (self.state is State.IDLE and not self._received)

    def _await_request(self) -> None:
        """Wait for a request. The connection is not idle if it has received bytes already."""
        self._enter(State.IDLE, None if self._received else self.timeout_keep_alive)

    def _refuse(self, error: GatewayError) -> None:
        if self.state is State.ENDED or self.transport.is_closing():
            return
        if self._answer(error):
            self._enter(State.ENDED, _LINGER_S)
            self._end(_LINGER_BYTES)
        else:
            self.state = State.ENDED
            self._close()

    def _drain(self, size: int) -> None:
        self._to_drain -= size
        if self._to_drain < 0:
            self._end_until_deadline()

    def close_after_body(self) -> None:
        """Close once the answer is sent. While the client still sends a body, discard the body."""
        if self.state is State.BODY and not self.transport.is_closing():
            self._end_until_deadline()
        else:
            self.transport.close()

    def _end_until_deadline(self) -> None:
        self.state = State.ENDED
        self._end(_UNTIL_DEADLINE)

    def _end(self, to_drain: int) -> None:
        """Send nothing more, and close later. An immediate close would lose the last answer."""
        self._received.clear()
        self._to_drain = to_drain
        self.transport.write_eof()
        self._receive_if_there_is_room()

    @property
    def _is_in_body(self) -> bool:
        return self.state in (State.BODY, State.DRAINING)

    def _enter(self, state: State, seconds: float | None) -> None:
        self.state = state
        self._deadline.restart(seconds)

    def _expire(self) -> None:
        # the connection may be closing already, but the client has not read all data yet
        if self.state is State.IDLE:
            self._close()
        elif self.state in (State.HEAD, State.BODY) and not self.transport.is_closing():
            self._refuse(_TOO_SLOW)
        else:
            self.transport.abort()


def connection_within(
    bounds: Bounds,
    dialects: Dialects,
    max_connections: int = sys.maxsize,
    refused: Callable[[str], None] = uncounted,
    cors: Cors | None = None,
) -> type[BoundedConnection]:
    """Make the connection class for uvicorn, which makes the class's instances itself."""
    given = {
        "bounds": bounds,
        "backlogs": Backlogs(bounds),
        "gathered": GatheredAnswers(bounds),
        "dialects": dialects,
        "holders": Holders[CountedConnection](max_connections),
        "cors": cors or Cors(),
    }
    return type("Connection", (BoundedConnection,), {**given, "refused": staticmethod(refused)})
