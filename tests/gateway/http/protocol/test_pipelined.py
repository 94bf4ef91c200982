"""Requests sent before the last answer wait for it; other connections do not wait."""

from __future__ import annotations

import asyncio

import pytest
from uvicorn.server import ServerState

from tests.doubles.gateway.wire import Wire
from tests.doubles.waiting import until
from tests.gateway.http.protocol.exchange import EARLY
from tests.gateway.http.protocol.in_memory import answers, connection_to, turns

NEVER_S = 3600.0  # seconds, longer than any test
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + b"a" * 200_000
CHUNKED = (
    b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"1\r\na\r\n" * 500
    + b"0\r\n\r\n"
)
UNREAD = f"POST {EARLY} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n".encode()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.mark.parametrize(
    "packets",
    [
        [GET + GET],
        [GET, GET],
        [GET + GET[:1], GET[1:]],
        [GET + GET[:-1], GET[-1:] + GET],
        [GET + b"\r\n" + GET],
        [LARGE + GET],
        [LARGE[:100_000], LARGE[100_000:] + GET],
        [CHUNKED + GET],
    ],
    ids=[
        "one packet",
        "two",
        "a byte",
        "all but a byte",
        "a line",
        "large",
        "large, cut",
        "chunks",
    ],
)
async def test_what_came_before_the_answer_waits(wire: Wire, packets: list[bytes]) -> None:
    with connection_to(wire, ServerState(), pipelined_s=NEVER_S) as connection:
        for packet in packets:
            connection.data_received(packet)
        await turns()
        assert answers(wire) == 1
        connection.data_received(GET)  # another pipelined request speeds up no answer
        await turns()
        assert answers(wire) == 1
        assert wire.asked.count("close") == 0


async def test_what_came_behind_a_body_that_nobody_read_waits_too(wire: Wire) -> None:
    with connection_to(wire, ServerState(), pipelined_s=NEVER_S, rest_s=0.0) as connection:
        connection.data_received(UNREAD)
        await turns()
        assert answers(wire) == 1
        connection.data_received(b"hi" + GET)
        await turns()
        assert answers(wire) == 1


@pytest.mark.parametrize("asked", [GET, LARGE, CHUNKED], ids=["plain", "large", "chunks"])
async def test_a_client_that_waits_for_each_answer_waits_for_nothing_else(
    wire: Wire, asked: bytes
) -> None:
    with connection_to(wire, ServerState(), pipelined_s=NEVER_S) as connection:
        for number in range(1, 4):
            connection.data_received(asked)
            await turns()
            assert answers(wire) == number


async def test_all_are_answered_in_the_end(wire: Wire) -> None:
    with connection_to(wire, ServerState(), pipelined_s=0.0) as connection:
        connection.data_received(GET * 9 + CHUNKED + LARGE + GET)
        await until(lambda: answers(wire) == 12, 10)


async def test_a_client_whose_requests_wait_is_not_idle(wire: Wire) -> None:
    with connection_to(wire, ServerState(), pipelined_s=NEVER_S, keep_alive_s=0) as connection:
        connection.data_received(GET + GET)
        await turns()
        await asyncio.sleep(0.02)
        assert (answers(wire), wire.asked) == (1, [])


async def test_one_that_is_idle_is_closed(wire: Wire) -> None:
    with connection_to(wire, ServerState(), keep_alive_s=0) as connection:
        connection.data_received(GET)
        await until(lambda: "close" in wire.asked, 10)
    assert answers(wire) == 1


async def test_a_server_that_drains_waits_for_no_pause(wire: Wire) -> None:
    with connection_to(wire, ServerState(), pipelined_s=NEVER_S) as connection:
        connection.data_received(GET + GET)
        await turns()
        connection.shutdown()
        assert wire.asked == ["close"]
        assert answers(wire) == 1
