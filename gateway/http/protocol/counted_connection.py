"""A connection that counts towards its port's limit, and whose client must read its answers.

uvicorn accepts connections until there are no file descriptors left. A process without descriptors
can neither accept nor refuse a connection. uvicorn also waits without limit for a client that does
not read, even after closing the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar, cast

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.config import Bounds
from gateway.errors import GatewayError, Unavailable
from gateway.http.answers.backlog import Backlogs, let_wait
from gateway.http.answers.whole_answer import GatheredAnswers, let_gather
from gateway.http.cors import Cors
from gateway.http.error_dialect import Dialects, ErrorDialect, error_message
from gateway.http.protocol.coalesced_head import CoalescedHead
from gateway.http.protocol.framing import path_in
from gateway.http.protocol.holders import Holders
from gateway.http.protocol.read_watch import ReadWatch
from gateway.http.protocol.state import State
from gateway.http.request_head import abandon_if_stranger

_ASKED = (State.HEAD, State.BODY, State.ANSWERING)
_GONE_S = 0.05  # seconds to wait for the last bytes of a connection that is closed to make room
_TOO_MANY_CONNECTIONS = Unavailable(
    "the server has too many connections", code="too_many_connections", retry_after_s=1.0
)


class _Answered:
    """The state of an answered request, which keeps none of the request's objects alive."""

    response_started = True
    response_complete = True

    def __init__(self) -> None:
        self.message_event = asyncio.Event()


_ANSWERED = cast("RequestResponseCycle", _Answered())
_NO_PIPELINE: deque[Any] = deque(maxlen=0)


class _Flow(FlowControl):
    """uvicorn's flow control, with an event (0.8 KiB) only once the client reads too slowly."""

    def __init__(self, connection: CountedConnection) -> None:
        self._transport = connection  # type: ignore[assignment]
        self.read_paused = self.write_paused = False

    def pause_writing(self) -> None:
        """Let `drain` wait for `resume_writing`."""
        if not self.write_paused:
            self.write_paused = True
            self._is_writable_event = asyncio.Event()


def uncounted(code: str) -> None:
    """Ignore a refusal's code: the default of a server that does not count refusals."""


class CountedConnection(HttpToolsProtocol):
    """uvicorn's connection, counted by its port.

    On a full port, a new connection closes another connection, which `holders` chooses.
    """

    # With more than 30 attributes, the instances' dicts no longer share their keys, so that each
    # takes 1.5 KiB. uvicorn's attributes alone are fewer.
    __slots__ = ("_reads", "_received", "state")

    bounds: ClassVar[Bounds]
    dialects: ClassVar[Dialects]
    holders: ClassVar[Holders[CountedConnection]]
    backlogs: ClassVar[Backlogs]
    gathered: ClassVar[GatheredAnswers]
    cors: ClassVar[Cors] = Cors()
    # called with the code of each error that the connection sends
    refused = staticmethod(uncounted)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pipeline = _NO_PIPELINE  # heads are parsed one at a time
        self.state = State.CLOSED
        self._received = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the new connection. If the port is full, close another connection."""
        super().connection_made(CoalescedHead(transport, self.loop))
        self._reads = ReadWatch(self.transport, self.bounds.stalled_write_s)
        self.flow = _Flow(self)
        gone = self.holders.enter(self)
        if gone is self:
            self._say(_TOO_MANY_CONNECTIONS, self.dialects.default)
            self._close()
        elif gone is not None:
            gone.make_room()

    @property
    def is_idle(self) -> bool:
        """True if no request is running on the connection."""
        return self.state is State.IDLE

    def make_room(self) -> None:
        """Close at once to make room. A client that waits for an answer is sent an error."""
        if self.flow.write_paused:  # the client does not read
            self.transport.abort()
            return
        if self.state in _ASKED or self.cycle is None:
            self._answer(_TOO_MANY_CONNECTIONS)
        self.state = State.ENDED
        self._reads.cut_off_in(_GONE_S)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the count. Abandon its request if it has no valid key."""
        self.holders.leave(self)
        self._reads.end()
        super().connection_lost(exc)
        if self.scope is not None:
            abandon_if_stranger(cast("Scope", self.scope))

    def on_message_begin(self) -> None:
        """Make a request's scope, and let the answer's bytes be counted while they wait."""
        super().on_message_begin()
        let_wait(cast("Scope", self.scope), self.backlogs, self.flow)
        let_gather(cast("Scope", self.scope), self.gathered)

    def forget_request(self) -> None:
        """Drop the answered request's objects, which uvicorn keeps until the next request."""
        self.cycle = _ANSWERED
        self.scope = None  # type: ignore[assignment]
        self.headers = []

    def pause_writing(self) -> None:
        """Record that the client reads more slowly than the server writes."""
        super().pause_writing()
        self._reads.begin()

    def resume_writing(self) -> None:
        """Record that the client reads again."""
        if not self.transport.is_closing():
            self._reads.end()
        super().resume_writing()

    def _say(self, error: GatewayError, dialect: ErrorDialect, scope: Scope | None = None) -> None:
        self.refused(error.code)
        self.transport.write(error_message(dialect, error, scope, self.cors))

    def _answer(self, error: GatewayError) -> bool:
        """Answer the running request with `error`; return False if its answer has begun."""
        if self.state is State.HEAD or self.cycle is None:
            self._say(error, self.dialects.of(path_in(self._received)))
            return True
        if self.cycle.response_started:
            return False
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        scope = cast("Scope", self.scope)
        self._say(error, self.dialects.of(scope["path"]), scope)
        return True

    def _close(self) -> None:
        """Close once all written data has been sent. Abort the connection of a very slow client."""
        self._reads.begin()
        self.transport.close()
