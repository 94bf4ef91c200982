"""One connection too many is refused at once, and none stays that nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

from uvicorn.server import ServerState

from gateway.config import Bounds
from gateway.http.protocol.connection import connection_within
from tests.doubles.gateway.wire import Wire
from tests.doubles.waiting import until
from tests.gateway.http.protocol.exchange import DIALECTS
from tests.gateway.http.protocol.in_memory import answers, connection_to, turns

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HASTY = Bounds(stalled_write_s=0.01)


async def test_one_too_many_is_refused_and_closed() -> None:
    state, codes = ServerState(), list[str]()
    kind = connection_within(Bounds(), DIALECTS, 2, codes.append)
    with ExitStack() as opened:
        inside = [Wire(), Wire()]
        clients = [opened.enter_context(connection_to(wire, state, kind)) for wire in inside]
        late = Wire()
        with connection_to(late, state, kind) as refused:
            [said] = late.sent
            assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"retry-after: 1\r\n" in said
            assert b'"code":"too_many_connections"' in said
            assert late.asked == ["close"]
            refused.data_received(GET)  # it is too late to ask
            await turns()
            assert len(late.sent) == 1
        for client in clients:
            client.data_received(GET)
        await turns()
        assert [answers(wire) for wire in inside] == [1, 1]
        assert codes == ["too_many_connections"]


async def test_where_one_has_left_another_is_served() -> None:
    state, kind = ServerState(), connection_within(Bounds(), DIALECTS, 1)
    for _ in range(3):
        wire = Wire()
        with connection_to(wire, state, kind) as connection:
            connection.data_received(GET)
            await turns()
            assert answers(wire) == 1


async def test_what_is_closed_and_not_read_is_cut_off() -> None:
    """uvloop keeps a closed connection until all is sent; `Wire` keeps it until it is lost."""
    wire = Wire()
    kind = connection_within(HASTY, DIALECTS)
    with connection_to(wire, ServerState(), kind, keep_alive_s=0) as connection:
        connection.data_received(GET)
        await until(lambda: "abort" in wire.asked, 10)
        assert wire.asked == ["close", "abort"]


class Read(Wire):
    """A wire to a client that reads, so that it is closed in no time."""

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
