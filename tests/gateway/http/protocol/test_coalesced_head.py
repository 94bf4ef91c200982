"""The head of an answer is sent with the first piece of its body, or alone if no piece follows."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from starlette.responses import Response
from uvicorn.server import ServerState

from gateway.config import Bounds
from gateway.http.protocol.coalesced_head import CoalescedHead
from gateway.http.protocol.connection import connection_within
from tests.doubles.gateway.wire import Wire
from tests.gateway.http.protocol.exchange import DIALECTS

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"


async def turn() -> None:
    """Wait for one iteration of the event loop."""
    await asyncio.sleep(0)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def joined(wire: Wire) -> CoalescedHead:
    return CoalescedHead(wire, asyncio.get_running_loop())


async def test_a_head_leaves_with_the_first_piece(wire: Wire) -> None:
    transport = joined(wire)
    transport.write(HEAD)
    assert wire.sent == []
    transport.write(b"one")
    assert wire.sent == [HEAD + b"one"]
    await turn()
    transport.write(b"two")
    assert wire.sent == [HEAD + b"one", b"two"]


async def test_a_head_without_a_body_waits_for_one_turn(wire: Wire) -> None:
    transport = joined(wire)
    transport.write(HEAD)
    await turn()
    assert wire.sent == [HEAD]
    transport.write(b"late")
    assert wire.sent == [HEAD, b"late"]


async def test_answers_follow_each_other(wire: Wire) -> None:
    transport = joined(wire)
    for _ in range(2):
        transport.write(HEAD)
        transport.write(b"one")
    assert wire.sent == [HEAD + b"one"] * 2
    await turn()
    assert len(wire.sent) == 2


async def test_a_head_behind_a_head(wire: Wire) -> None:
    go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
    transport = joined(wire)
    transport.write(go_on)
    transport.write(HEAD)
    assert wire.sent == [go_on + HEAD]


async def test_a_piece_that_looks_like_a_head_is_sent_all_the_same(wire: Wire) -> None:
    transport = joined(wire)
    transport.write(HEAD)
    transport.write(b"one")
    transport.write(b"HTTP/1. is not a head")
    await turn()
    assert b"".join(wire.sent) == HEAD + b"one" + b"HTTP/1. is not a head"


async def test_closing_sends_what_waits(wire: Wire) -> None:
    transport = joined(wire)
    transport.write(HEAD)
    transport.close()
    assert (wire.sent, wire.asked) == ([HEAD], ["close"])
    assert transport.is_closing()
    await turn()
    assert wire.sent == [HEAD]


async def test_the_end_is_sent_behind_what_waits(wire: Wire) -> None:
    transport = joined(wire)
    transport.write(HEAD)
    transport.write_eof()
    assert (wire.sent, wire.asked) == ([HEAD], ["eof"])
    assert not transport.is_closing()


async def test_aborting_sends_nothing_more(wire: Wire) -> None:
    transport = joined(wire)
    transport.write(HEAD)
    transport.abort()
    await turn()
    assert (wire.sent, wire.asked) == ([], ["abort"])


async def test_the_rest_is_passed_on(wire: Wire) -> None:
    transport = joined(wire)
    transport.pause_reading()
    transport.resume_reading()
    assert wire.asked == ["pause", "resume"]
    assert not transport.is_closing()
    assert transport.get_extra_info("peername") == ("127.0.0.1", 1)
    assert transport.get_extra_info("cipher", "none") == "none"


async def test_an_answer_through_the_web_server_is_one_write(wire: Wire) -> None:
    config = uvicorn.Config(Response(b"hello"), log_config=None, access_log=False, lifespan="off")
    state = ServerState()
    connection = connection_within(Bounds(), DIALECTS)(config, state, {})
    connection.connection_made(wire)
    connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.gather(*state.tasks)
    [answer] = wire.sent
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhello")
    connection.connection_lost(None)
