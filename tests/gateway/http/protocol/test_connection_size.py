"""The sizes of a connection's parts that exist for as long as the connection does."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from tests.doubles.gateway.wire import Wire
from tests.gateway.http.protocol.in_memory import answers, connection_to, turns

SHARED_KEYS = 30  # maximum number of attributes of which CPython's instances share the names
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_a_connection_shares_the_names_of_its_attributes_with_others() -> None:
    wire = Wire()
    with connection_to(wire, ServerState(), application=PlainTextResponse("done")) as connection:
        connection.data_received(GET)
        await turns()
        assert answers(wire) == 1
        assert len(vars(connection)) <= SHARED_KEYS


async def test_an_answer_waits_only_between_a_pause_and_a_resumption() -> None:
    with connection_to(Wire(), ServerState(), application=PlainTextResponse("done")) as connection:
        connection.pause_writing()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.flow.drain(), 0.01)
        draining = asyncio.ensure_future(connection.flow.drain())
        connection.resume_writing()
        await asyncio.wait_for(draining, 10)
