"""Connections beyond the limit are refused at once, and none stays open unread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from uvicorn.server import ServerState

from gateway.config import Bounds
from gateway.http.protocol.connection import BoundedConnection, connection_within
from tests.doubles.gateway.wire import Wire
from tests.doubles.waiting import until
from tests.gateway.http.protocol.exchange import DIALECTS
from tests.gateway.http.protocol.in_memory import answers, connection_to, turns

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HASTY = Bounds(stalled_write_s=0.01)


class Port:
    """A server's port that allows a limited number of connections."""

    def __init__(self, most: int) -> None:
        self.codes: list[str] = []
        self._opened = ExitStack()
        self._state = ServerState()
        self._kind = connection_within(Bounds(), DIALECTS, most, self.codes.append)

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def connect(self, wire: Wire, owner: str | None = None) -> BoundedConnection:
        """Open another connection; with `owner`, the connection has shown a key of this owner."""
        connection = self._opened.enter_context(connection_to(wire, self._state, self._kind))
        if owner is not None:
            connection.holders.tell(connection, owner)
        return connection


async def test_where_all_are_busy_one_too_many_is_refused_and_closed() -> None:
    inside, late = [Wire(), Wire()], Wire()
    with Port(2) as port:
        clients = [port.connect(wire, "tn_a") for wire in inside]
        for client in clients:
            client.data_received(GET[:-1])
        refused = port.connect(late)
        [said] = late.sent
        assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 1\r\n" in said
        assert b'"code":"too_many_connections"' in said
        assert late.asked == ["close"]
        # the connection was already refused, so this request comes too late
        refused.data_received(GET)
        await turns()
        assert len(late.sent) == 1
        for client in clients:
            client.data_received(GET[-1:])
        await turns()
        assert [answers(wire) for wire in inside] == [1, 1]
        assert port.codes == ["too_many_connections"]


POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na"


@pytest.mark.parametrize(("sent", "is_told"), [(b"", 1), (GET[:-1], 1), (POST, 1), (GET, 0)])
async def test_a_stranger_s_makes_room_and_a_request_under_way_is_told_why(
    sent: bytes, is_told: int
) -> None:
    first, late, others = Wire(), Wire(), Wire()
    with Port(2) as port:
        stranger, known = port.connect(first), port.connect(others, "tn_a")
        stranger.data_received(sent)
        await turns()
        newcomer = port.connect(late)
        await turns()
        assert first.asked[-1:] == ["close"]
        assert b"".join(first.sent).count(b"HTTP/1.1 503 ") == is_told
        assert port.codes == ["too_many_connections"] * is_told
        for connection, wire in ((newcomer, late), (known, others)):
            connection.data_received(GET)
            await turns()
            assert answers(wire) == 1


async def test_who_does_not_read_is_not_waited_for() -> None:
    with Port(1) as port:
        wire = Wire()
        stranger = port.connect(wire)
        stranger.data_received(GET[:-1])
        stranger.pause_writing()
        port.connect(Wire())
        assert wire.asked == ["abort"]
        assert wire.sent == []


async def test_what_it_was_sent_last_is_waited_for_but_not_for_long() -> None:
    with Port(1) as port:
        wire = Wire()  # a client that stays connected after the close
        port.connect(wire)
        port.connect(Wire())
        assert (wire.asked, len(wire.sent)) == (["close"], 1)
        await until(lambda: "abort" in wire.asked, 10)


async def test_where_one_has_left_another_is_served() -> None:
    state, kind = ServerState(), connection_within(Bounds(), DIALECTS, 1)
    for _ in range(3):
        wire = Wire()
        with connection_to(wire, state, kind) as connection:
            connection.data_received(GET)
            await turns()
            assert answers(wire) == 1


async def test_what_is_closed_and_not_read_is_cut_off() -> None:
    """Abort a closed connection whose client does not read.

    uvloop keeps a closed connection until everything is sent; `Wire` keeps it until it is lost.
    """
    wire = Wire()
    kind = connection_within(HASTY, DIALECTS)
    with connection_to(wire, ServerState(), kind, keep_alive_s=0) as connection:
        connection.data_received(GET)
        await until(lambda: "abort" in wire.asked, 10)
        assert wire.asked == ["close", "abort"]


class Read(Wire):
    """A wire to a client that reads, so that a close takes effect at once."""

    lost: Callable[[None], None] | None = None

    def close(self) -> None:
        super().close()
        lost, self.lost = self.lost, None
        if lost is not None:
            lost(None)


async def test_what_is_closed_and_read_is_not_cut_off() -> None:
    wire = Read()
    kind = connection_within(HASTY, DIALECTS)
    with connection_to(wire, ServerState(), kind, keep_alive_s=0) as connection:
        wire.lost = connection.connection_lost
        connection.data_received(GET)
        await until(lambda: "close" in wire.asked, 10)
        await asyncio.sleep(0.05)
        assert "abort" not in wire.asked
